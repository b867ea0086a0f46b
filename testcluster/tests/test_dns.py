"""The cluster's DNS derives its names from Services and Endpoints."""

from typing import Any

import pytest
from cluster.dns import hosts


def service(name: str, cluster_ip: str | None) -> dict[str, Any]:
    spec = {} if cluster_ip is None else {"clusterIP": cluster_ip}
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": spec}


def endpoints(name: str, *subsets: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns"}, "subsets": list(subsets)}


READY = {"addresses": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.1"}]}
UNREADY = {"notReadyAddresses": [{"ip": "10.0.0.3"}]}
NAMED = {"addresses": [{"ip": "10.0.0.4", "hostname": "head"}]}


@pytest.mark.parametrize(
    ("services", "found", "lines"),
    [
        ([service("a", "10.96.0.5")], [], ["10.96.0.5 a.ns.svc.cluster.local"]),
        (
            [service("a", "10.96.0.5")],
            [endpoints("a", READY)],
            ["10.96.0.5 a.ns.svc.cluster.local"],
        ),
        (
            [service("a", "None")],
            [endpoints("a", READY, UNREADY)],
            ["10.0.0.1 a.ns.svc.cluster.local", "10.0.0.2 a.ns.svc.cluster.local"],
        ),
        (
            [service("a", "None")],
            [endpoints("a", NAMED)],
            ["10.0.0.4 a.ns.svc.cluster.local", "10.0.0.4 head.a.ns.svc.cluster.local"],
        ),
        ([service("a", "None")], [endpoints("b", READY)], []),
        ([service("a", "None")], [], []),
        ([service("external", None)], [], []),
        ([], [endpoints("a", READY)], []),
    ],
    ids=["own", "own with pods", "headless", "hostname", "no pods", "new", "external", "gone"],
)
def test_dns_names_of_services_are_as_listed(
    services: list[Any], found: list[Any], lines: list[str]
) -> None:
    assert hosts(services, found).splitlines() == lines


def test_dns_of_endpoints_without_subsets_has_no_name() -> None:
    empty = {"metadata": {"name": "a", "namespace": "ns"}, "subsets": None}
    assert hosts([service("a", "None")], [empty]) == ""
