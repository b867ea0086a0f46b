"""The Helm chart as it renders without a cluster."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "macroserve"
NAMESPACE = "macroserve-system"

Object = dict[str, Any]


@dataclass(frozen=True)
class Rendered:
    """The rendered `objects` by kind and name, such as ``Deployment/macroserve-operator``."""

    objects: dict[str, Object]
    notes: str

    def __getitem__(self, key: str) -> Object:
        return self.objects[key]

    def pod_specs(self) -> Iterator[tuple[str, Object]]:
        for key, found in self.objects.items():
            if found["kind"] == "Pod":
                yield key, found["spec"]
            elif "template" in found.get("spec", {}):
                yield key, found["spec"]["template"]["spec"]


@cache
def chart() -> helm.Chart:
    return helm.Chart.load(CHART)


def render(values: Object | None = None, **options: Any) -> Rendered:
    texts = chart().render(values or {}, name="macroserve", namespace=NAMESPACE, **options)
    objects: dict[str, Object] = {}
    notes = ""
    for path, text in texts.items():
        if path.endswith("NOTES.txt"):
            notes = text
            continue
        for found in yaml.safe_load_all(text):
            if found is not None:
                key = f"{found['kind']}/{found['metadata']['name']}"
                assert key not in objects, f"{key} is rendered twice"
                objects[key] = found
    return Rendered(objects, notes)


@cache
def schema() -> Object:
    """Return the schema of the chart's values with its references resolved."""
    document = json.loads((CHART / "values.schema.json").read_text())

    def resolved(node: Any) -> Any:
        if isinstance(node, list):
            return [resolved(item) for item in node]
        if not isinstance(node, dict):
            return node
        if reference := node.get("$ref"):
            return resolved(document["definitions"][reference.rpartition("/")[2]])
        return {key: resolved(value) for key, value in node.items() if key != "definitions"}

    return resolved(document)


def value_paths() -> list[str]:
    """Return the paths of all values, such as ``operator.image.tag``; a map for users' keys is one
    value."""
    return list(_value_paths(chart().values, schema(), ""))


def _value_paths(values: Object, node: Object, prefix: str) -> Iterator[str]:
    for key, value in values.items():
        inner = node["properties"][key]
        if isinstance(value, dict) and value and "properties" in inner:
            yield from _value_paths(value, inner, f"{prefix}{key}.")
        else:
            yield prefix + key


def at(tree: Any, path: str) -> Any:
    """``spec.ports.0.name`` of a tree."""
    for key in path.split("."):
        tree = tree[int(key)] if isinstance(tree, list) else tree[key]
    return tree


def nested(path: str, value: object) -> Object:
    """``{"a": {"b": value}}`` for ``a.b``."""
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value
