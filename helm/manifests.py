"""Write the chart as plain YAML into manifests/operator/, for kubectl and kustomize:

    python helm/manifests.py

The namespace is fixed, the Secrets are made by manifests/operator/secrets.sh, and what only Helm
reads (hooks, its labels) is left out.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

ROOT = Path(__file__).parents[1]
CHART = ROOT / "helm" / "macroserve"
TARGET = ROOT / "manifests" / "operator"
NAMESPACE = "macroserve-system"
HEAD = "# Of the chart helm/macroserve, by `make manifests`.\n"

VALUES = {
    "webhook": {"certificate": {"source": "Secret", "secretName": "macroserve-operator-webhook"}},
    "alerts": {"existingSecret": "macroserve-operator-alerts"},
    "monitoring": {
        "operator": True,
        "serving": True,
        "rules": True,
        "dashboard": {"enabled": True},
    },
}
HELM_LABELS = ("app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart")
MONITORING = ("monitors", "prometheusrules", "dashboard")
"""Templates of what needs the Prometheus Operator or Grafana."""

Object = dict[str, Any]


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are, and lists indented."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def files() -> dict[str, str]:
    """Name → content of each file that is made from the chart."""
    with helm.Chart.load(CHART) as chart:
        rendered = chart.render(VALUES, name="macroserve", namespace=NAMESPACE)
    objects = {
        Path(path).stem: list(_objects(text))
        for path, text in sorted(rendered.items())
        if path.endswith(".yaml") and "/tests/" not in path
    }
    release = objects.pop("release-hook")
    monitoring = [found for name in MONITORING for found in objects.pop(name)]
    return {
        "operator.yaml": _text([found for group in objects.values() for found in group]),
        "monitoring.yaml": _text(monitoring),
        "release.yaml": _text(release),
    }


def _objects(text: str) -> Iterator[Object]:
    for found in yaml.safe_load_all(text):
        if found:
            metadata = found["metadata"]
            for label in HELM_LABELS:
                del metadata["labels"][label]
            annotations = metadata.pop("annotations", {})
            if own := {k: v for k, v in annotations.items() if not k.startswith("helm.sh/")}:
                metadata["annotations"] = own
            yield found


def _text(objects: list[Object]) -> str:
    return HEAD + yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=10**6)


def main() -> int:
    for name, text in files().items():
        (TARGET / name).write_text(text)
        print(TARGET / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
