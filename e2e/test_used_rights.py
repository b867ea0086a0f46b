"""The operator's roles grant exactly the rights in the API server's audit log.

By its name this module runs last, when the log has all calls of the operator in other tests.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from cluster import Capability, Cluster
from world.kube import Kube
from world.release import NAMESPACE, Release
from world.served import Served
from world.waiting import eventually

pytestmark = pytest.mark.e2e

NAME = "macroserve-operator"
USER = f"system:serviceaccount:{NAMESPACE}:{NAME}"
CREATED = 201


class Right(NamedTuple):
    group: str
    resource: str
    verb: str


NOT_SEEN = {
    Right("macroserve.io", "macroinstances/finalizers", "update"): (
        "asked for by OwnerReferencesPermissionEnforcement, which this cluster does not run"
    ),
}
"""Rights that no call in the log needed, and why the operator has them all the same."""


@pytest.mark.needs(Capability.AUDIT_LOG)
def test_operator_rights_equal_the_calls_that_it_makes(
    fresh: Served, cluster: Cluster, operator: Kube, release: Release
) -> None:
    # A taken name makes the operator look up its owner.
    taken = f"{fresh.name}-instance-3"
    image = release.image("engine")
    fresh.kube("run", taken, f"--image={image}", "--command", "--", "sleep", "1000")
    fresh.scale(7)
    fresh.wait_for_condition("Degraded")
    fresh.kube("delete", "pod", taken, "--grace-period=1")
    fresh.wait_for_instances(7)
    fresh.scale(3)
    fresh.wait_for_instances(3)
    # A user's change of the secret makes the operator derive the keys again.
    tokens = f"{fresh.name}-tokens"
    fresh.kube("patch", "secret", tokens, "-p", '{"stringData": {"secret": "another"}}')
    rotated_at = "jsonpath={.metadata.annotations.macroserve\\.io/rotated-at}"
    eventually(lambda: fresh.kube("get", "secret", tokens, "-o", rotated_at), 60)
    # With a fixed number of ingresses again, their autoscaler is deleted.
    autoscaler = f"{fresh.name}-ingress"
    for ingress in ({"replicas": None, "maxReplicas": 3}, {"maxReplicas": None}):
        patch = json.dumps({"spec": {"ingress": ingress}})
        fresh.kube("patch", "macroinstance", fresh.name, "--type=merge", "-p", patch)
        wanted = any(ingress.values())
        eventually(lambda: bool(fresh.kube.get("hpa", autoscaler)) == wanted, 60)  # noqa: B023
    fresh.kube("delete", "macroinstance", fresh.name, "--timeout=120s")

    calls = list(calls_of(USER, cluster))
    granted = set(granted_rights(cluster, operator))
    # An uninstall deletes the roles before the pods that use them.
    refused = {right for call in calls if decision(call) != "allow" for right in rights(call)}
    assert refused <= granted
    used = {right for call in calls if decision(call) == "allow" for right in rights(call)}
    assert granted - used == NOT_SEEN.keys()
    assert used <= granted


def calls_of(user: str, cluster: Cluster) -> Iterator[dict[str, Any]]:
    """Yield the calls of a user on objects, without calls for the API's description, which every
    user may make."""
    with cluster.audit_log.open() as log:
        for line in log:
            call = json.loads(line)
            if call["user"].get("username") == user and "resource" in call.get("objectRef", {}):
                yield call


def decision(call: dict[str, Any]) -> str:
    return call.get("annotations", {}).get("authorization.k8s.io/decision", "")


def rights(call: dict[str, Any]) -> Iterator[Right]:
    """Yield the rights that the API server checked. A patch that creates its object also needs
    `create`."""
    about = call["objectRef"]
    resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
    yield Right(about.get("apiGroup", ""), resource, call["verb"])
    if call["verb"] == "patch" and call.get("responseStatus", {}).get("code") == CREATED:
        yield Right(about.get("apiGroup", ""), resource, "create")


def granted_rights(cluster: Cluster, operator: Kube) -> Iterator[Right]:
    everywhere = json.loads(cluster.kubectl("get", "clusterrole", NAME, "-o", "json"))
    at_home = operator.get("role", NAME)
    assert at_home is not None
    for rule in (*everywhere["rules"], *at_home["rules"]):
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                yield from (Right(group, resource, verb) for verb in rule["verbs"])
