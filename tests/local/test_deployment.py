"""The ingress of a deployment is started on a fake cluster."""

from dataclasses import dataclass
from typing import Any

import pytest
from support.keys import source

from macroserve.core.backoff import Backoff
from macroserve.local import deployment
from macroserve.local.cluster import ClusterOptions
from macroserve.local.deployment import DeploymentJob
from macroserve.local.manifest_file import engine_settings, loads
from macroserve.serving.ingress.server import IngressOptions
from macroserve.serving.ray.cells import DeployError


@dataclass
class Cluster:
    """A fake cluster that fails to start the ingress `num_failures` times."""

    num_failures: int
    num_tries: int = 0

    async def deploy_ingress(self) -> None:
        self.num_tries += 1
        if self.num_tries <= self.num_failures:
            raise DeployError("no memory")


async def deployed(monkeypatch: pytest.MonkeyPatch, cluster: Any) -> list[str]:
    """Deploy the ingress; return the messages."""
    with open("manifests/emulated.yaml") as file:  # noqa: ASYNC230, PTH123 - a small one
        manifest = loads(file.read(), "m")
    ingress = IngressOptions(macroinstance="m", keys=source())
    options = ClusterOptions(
        settings=engine_settings(manifest, "tiny"),
        ingress=ingress,
        ingress_replicas=2,
        threads=1,
        secret="secret",
    )
    monkeypatch.setattr(deployment, "BACKOFF", Backoff(0.0, 0.0))
    setup = DeploymentJob(options, "http://p", "token", manifest.desired_fleet(), 0.1)
    told: list[str] = []
    await deployment.deploy_ingress(cluster, setup, told.append)
    return told


async def test_ingress_that_does_not_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told = await deployed(monkeypatch, Cluster(num_failures=2))
    assert sum("The ingress did not start: no memory" in text for text in told) == 2
    assert any("2 ingress replicas listen on" in text for text in told)


async def test_deployment_whose_ingress_never_starts_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(num_failures=9)
    with pytest.raises(DeployError, match="no memory"):
        await deployed(monkeypatch, cluster)
    assert cluster.num_tries == 3
