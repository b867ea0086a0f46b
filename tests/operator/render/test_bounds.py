"""A serving pod has limits on its memory and disk."""

from typing import Any

import pytest

from macroserve.operator.render.bounds import bounded


def pod(
    resources: dict[str, Any] | None = None, volumes: tuple[dict[str, Any], ...] = ()
) -> dict[str, Any]:
    engine = {"name": "engine"} | ({} if resources is None else {"resources": resources})
    spec = {"initContainers": [{"name": "fetch"}], "containers": [engine, {"name": "sidecar"}]}
    return {"metadata": {}, "spec": {**spec, "volumes": list(volumes)}}


def memory(*names: str, **quantities: str) -> dict[str, Any]:
    return {name: {"memory": quantities[name]} for name in names}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, {"limits": {"memory": "8Gi"}}),
        (
            {"limits": {"nvidia.com/gpu": "4"}},
            {"limits": {"nvidia.com/gpu": "4", "memory": "8Gi"}},
        ),
        (
            {"requests": {"memory": "1Gi", "cpu": "1"}},
            {"requests": {"memory": "1Gi", "cpu": "1"}, "limits": {"memory": "8Gi"}},
        ),
        (
            {"requests": {"memory": "200Gi"}},
            {"requests": {"memory": "200Gi"}, "limits": {"memory": "200Gi"}},
        ),
        (
            {"requests": {"memory": "2Gi"}, "limits": {"memory": "500M"}},
            {"requests": {"memory": "500M"}, "limits": {"memory": "500M"}},
        ),
        ({"limits": {"memory": "1Ti"}}, {"limits": {"memory": "1Ti"}}),
        ({"limits": {"memory": None}}, {"limits": {"memory": "8Gi"}}),
        ({"limits": {"memory": "lots"}}, {"limits": {"memory": "lots"}}),
    ],
    ids=str,
)
def test_engine_without_a_memory_limit_gets_one(
    given: dict[str, Any] | None, expected: dict[str, Any]
) -> None:
    assert bounded(pod(given), "8Gi")["spec"]["containers"][0]["resources"] == expected


def test_container_beside_the_engine_has_a_memory_limit() -> None:
    spec = bounded(pod(), "8Gi")["spec"]
    for container in (spec["containers"][1], *spec["initContainers"]):
        assert container["resources"] == {"limits": {"memory": "4Gi"}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"emptyDir": {}}, {"emptyDir": {"sizeLimit": "10Gi"}}),
        (
            {"emptyDir": {"medium": "Memory", "sizeLimit": None}},
            {"emptyDir": {"medium": "Memory", "sizeLimit": "10Gi"}},
        ),
        ({"emptyDir": {"sizeLimit": "1Ti"}}, {"emptyDir": {"sizeLimit": "1Ti"}}),
        ({"emptyDir": None}, {"emptyDir": {"sizeLimit": "10Gi"}}),
        ({}, {"emptyDir": {"sizeLimit": "10Gi"}}),
        ({"configMap": {"name": "c"}}, {"configMap": {"name": "c"}}),
    ],
)
def test_empty_dir_without_a_size_limit_gets_one(
    given: dict[str, Any], expected: dict[str, Any]
) -> None:
    volumes = bounded(pod(volumes=({"name": "v", **given},)), "8Gi")["spec"]["volumes"]
    assert volumes == [{"name": "v", **expected}]
