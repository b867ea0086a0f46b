"""The served versions of a CRD are registered with the API server."""

from typing import Any

import pytest
from cluster.apiservices import registrations


def crd(established: str, **served: bool) -> dict[str, Any]:
    versions = [{"name": name, "served": is_served} for name, is_served in served.items()]
    return {
        "spec": {"group": "example.io", "versions": versions},
        "status": {
            "conditions": [
                {"type": "NamesAccepted", "status": "True"},
                {"type": "Established", "status": established},
            ]
        },
    }


NEW = {"spec": {"group": "example.io", "versions": [{"name": "v1", "served": True}]}}


@pytest.mark.parametrize(
    ("crds", "names"),
    [
        ([], []),
        ([crd("True", v1=True)], ["v1.example.io"]),
        ([crd("True", v1=True, v1beta1=False)], ["v1.example.io"]),
        ([crd("True", v1=True), crd("True", v1=True, v2=True)], ["v1.example.io", "v2.example.io"]),
        ([crd("False", v1=True)], []),
        ([NEW], []),
        ([NEW | {"status": {"conditions": None}}], []),
    ],
    ids=["none", "one", "not served", "two kinds", "not yet", "new", "no conditions"],
)
def test_apiservices_of_crds_are_the_served_versions(crds: list[Any], names: list[str]) -> None:
    found = registrations(crds)
    assert sorted(found) == names
    assert all(name == f"{spec['version']}.{spec['group']}" for name, spec in found.items())
