"""The chart's release in a test cluster, managed by ``helm``."""

import subprocess
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml
from cluster import Cluster

from world.served import emulated
from world.waiting import eventually

CHART = Path(__file__).parents[2] / "helm" / "macroserve"
NAME = "macroserve"
NAMESPACE = "macroserve-system"
TIMEOUT_S = 120


def image_values(images: str) -> dict[str, Any]:
    """Return the chart's values for the images PREFIX/operator:TAG and PREFIX/engine:TAG.

    images: ``PREFIX:TAG``. Raises ValueError if it has no tag.
    """
    prefix, colon, tag = images.rpartition(":")
    if not colon or "/" in tag:
        raise ValueError(f"IMAGES must be PREFIX:TAG, not {images!r}")
    components = ("operator", "engine")
    return {name: {"image": {"repository": f"{prefix}/{name}", "tag": tag}} for name in components}


class Release:
    def __init__(self, cluster: Cluster, values: dict[str, Any]) -> None:
        self._cluster = cluster
        self.values = values

    def image(self, component: str) -> str:
        """Return the full name of the operator's or the engine's image."""
        image = self.values[component]["image"]
        return f"{image['repository']}:{image['tag']}"

    def _config(self) -> helm.Config:
        return helm.Config(kubeconfig_path=self._cluster.kubeconfig, namespace=NAMESPACE)

    def install(self) -> None:
        """Install the release; return when the API server reaches its webhook."""
        with self._config() as config:
            config.install(
                CHART,
                NAME,
                self.values,
                create_namespace=True,
                wait="watcher",
                timeout=TIMEOUT_S,
            )
        # kube-proxy learns of the webhook's ready pods a moment after Helm does.
        eventually(lambda: not self._refusal(), TIMEOUT_S, describe=self._refusal)

    def _refusal(self) -> str:
        """Return why a valid MacroInstance is refused in a dry run, or an empty text."""
        dry = ("-n", "default", "create", "--dry-run=server", "-f", "-")
        try:
            self._cluster.kubectl(*dry, input=yaml.safe_dump(emulated("reviewed")))
        except subprocess.CalledProcessError as error:
            return error.stderr
        return ""

    def upgrade(self, values: dict[str, Any]) -> None:
        """Upgrade the release with these values, added to those of its installation."""
        with self._config() as config:
            config.upgrade(
                CHART, NAME, {**self.values, **values}, wait="watcher", timeout=TIMEOUT_S
            )

    def rollback(self) -> None:
        """Roll the release back to its previous revision."""
        with self._config() as config:
            config.rollback(NAME, wait="watcher", timeout=TIMEOUT_S)

    def test(self) -> str:
        """Run the chart's test; return its pod's output."""
        with self._config() as config:
            return config.test(NAME, timeout=TIMEOUT_S, logs=True)["logs"]

    def uninstall(self) -> None:
        with self._config() as config:
            config.uninstall(NAME, wait="watcher", timeout=TIMEOUT_S, ignore_not_found=True)
