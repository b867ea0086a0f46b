"""The CRD documents values and rules, and defines names, columns and scale for Kubernetes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support import crd

from macroserve.operator.admission import spec as admission
from macroserve.operator.k8s import names


def schemas(schema: dict[str, Any] = crd.SCHEMA, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from schemas(field, f"{path}.{name}")
    if "items" in schema:
        yield from schemas(schema["items"], f"{path}[]")


ALL = [(p, s) for p, s in schemas() if p.startswith((".spec", ".status"))]


@pytest.mark.parametrize(("path", "schema"), ALL, ids=[path for path, _ in ALL])
def test_crd_descriptions_name_allowed_values_and_defaults(
    path: str, schema: dict[str, Any]
) -> None:
    """kubectl shows descriptions, but neither defaults nor, before 1.27, enums."""
    text = schema["description"]
    assert text[0].isupper() and text.endswith(".")
    if path.startswith(".spec"):
        default = schema.get("default")
        told = [value for value in schema.get("enum", ()) if not isinstance(value, bool)]
        told += [default] if default not in (None, {}) else []
        assert [value for value in told if json.dumps(value).strip('"') not in text] == []


def rules() -> dict[str, list[dict[str, Any]]]:
    found = {path[1:]: schema.get("x-kubernetes-validations", []) for path, schema in ALL}
    return {path: of for path, of in found.items() if of}


def test_crd_immutable_fields_equal_those_of_admission() -> None:
    fixed = [
        path for path, of in rules().items() if any(r["rule"] == "self == oldSelf" for r in of)
    ]
    assert fixed == [f"spec.{path}" for path in admission.FIXED]


def test_crd_rule_messages_say_what_is_allowed() -> None:
    assert len(rules()) > 5
    for of in rules().values():
        for rule in of:
            assert rule["message"].startswith(("must be ", "spec."))


def test_crd_names_equal_those_of_the_operator() -> None:
    spec, kind = crd.CRD["spec"], crd.CRD["spec"]["names"]
    assert (spec["group"], crd.VERSION["name"]) == (names.GROUP, names.VERSION)
    assert (kind["kind"], kind["plural"]) == (names.KIND, names.PLURAL)
    assert crd.CRD["metadata"]["name"] == f"{names.PLURAL}.{names.GROUP}"


def test_crd_columns_and_scale_read_existing_fields() -> None:
    scale = crd.VERSION["subresources"]["scale"]
    types = {"specReplicasPath": "integer", "statusReplicasPath": "integer"}
    read = [(path, types.get(name, "string")) for name, path in scale.items()]
    *columns, age = crd.VERSION["additionalPrinterColumns"]
    assert age["jsonPath"] == ".metadata.creationTimestamp"
    read += [(column["jsonPath"], column["type"]) for column in columns]
    for path, kind in read:
        assert crd.at(path.removeprefix("."))["type"] == kind
