"""Validation by the CRD's schema without an API server."""

import copy
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft4Validator

PATH = Path(__file__).parents[2] / "crds" / "macroinstances.yaml"
CRD: dict[str, Any] = yaml.safe_load(PATH.read_text())
(VERSION,) = CRD["spec"]["versions"]
SCHEMA: dict[str, Any] = VERSION["schema"]["openAPIV3Schema"]


def at(path: str) -> dict[str, Any]:
    """The schema of a dotted path."""
    schema = SCHEMA
    for field in path.split("."):
        schema = schema.get("items", schema)["properties"][field]
    return schema


def fields_at(path: str) -> dict[str, Any]:
    """The schema with the fields of a dotted path; of a list's items."""
    schema = at(path)
    return schema.get("items", schema)


def with_status(status: Any) -> dict[str, Any]:
    """A valid resource with this status."""
    return {
        "apiVersion": "macroserve.io/v1alpha1",
        "kind": "MacroInstance",
        "spec": {
            "model": {"source": "tiny", "maxModelLen": 2048},
            "engine": {"type": "Emulated"},
            "slo": {"ttft": "2s", "tpot": "100ms"},
            "instances": 3,
            "mitosis": {"lowerBound": 2, "upperBound": 6},
        },
        "status": status,
    }


def refused(document: Any) -> list[str]:
    """Return the schema's errors about a document, including unknown fields. CEL rules are not
    evaluated."""
    validator = Draft4Validator(_strict(copy.deepcopy(SCHEMA)))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def defaulted(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document as an API server stores it, with the defaults of missing fields."""
    result = copy.deepcopy(document)
    _fill(result, SCHEMA)
    return result


def _fill(value: dict[str, Any], schema: dict[str, Any]) -> None:
    for name, field in schema.get("properties", {}).items():
        if name not in value and "default" in field:
            value[name] = copy.deepcopy(field["default"])
        if isinstance(value.get(name), dict):
            _fill(value[name], field)


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    preserves = schema.get("x-kubernetes-preserve-unknown-fields")
    fields = schema.get("properties")
    # Metadata is defined by Kubernetes, not by the CRD.
    if fields and not preserves and schema is not SCHEMA and set(fields) != {"name"}:
        schema["additionalProperties"] = False
    for inner in (*(fields or {}).values(), *filter(None, [schema.get("items")])):
        _strict(inner)
    return schema
