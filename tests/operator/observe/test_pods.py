"""A reconcile observes pods by their raw objects."""

from datetime import UTC, datetime
from typing import Any

import pytest

from macroserve.core.scaling.fleet import MAX_BUDGET_S
from macroserve.core.status import Pool
from macroserve.operator.k8s import names
from macroserve.operator.observe.pods import head_address, instance_pods, server

UID = "uid-llama"


def raw(
    name: str = "llama-instance-0",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    status: dict[str, Any] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    own = {names.COMPONENT: "instance", names.INSTANCE: name.removeprefix("llama-")}
    return {
        "metadata": {
            "name": name,
            "labels": own | (labels or {}),
            "annotations": annotations or {},
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{"uid": UID}],
            **metadata,
        },
        "spec": {"containers": []},
        "status": status or {},
    }


def ready(address: str = "10.0.0.5", status: str = "True") -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": status}]
    return {"phase": "Running", "podIP": address, "conditions": conditions}


@pytest.mark.parametrize(
    ("labels", "calls_tls", "expected"),
    [({}, False, (False, False)), ({}, True, (False, False))]
    + [({names.TLS: "true"}, calls, (True, not calls)) for calls in (False, True)],
)
def test_pod_with_tls_is_unreachable_without_a_certificate(
    labels: dict[str, str], calls_tls: bool, expected: tuple[bool, bool]
) -> None:
    (found,) = instance_pods([raw(labels=labels)], UID, calls_tls)
    assert (found.tls, found.unreachable) == expected


def test_instance_pod_has_the_fields_of_its_object() -> None:
    pod = raw(
        labels={names.CELL: "cell-1", names.POOL: "hp"},
        annotations={
            names.REVISION: "abc",
            names.DRAINING_SINCE: "2026-01-01T00:01:00Z",
            names.DRAIN_BUDGET: "75",
        },
        status=ready(),
    )
    (found,) = instance_pods([pod], UID)
    assert (found.instance, found.name) == ("instance-0", "llama-instance-0")
    assert (found.cell, found.pool, found.revision) == ("cell-1", Pool.HP, "abc")
    assert (found.address, found.ready) == ("10.0.0.5", True)
    assert found.draining_since == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    assert found.drain_budget_s == 75.0
    assert not (found.failed or found.deleting)


def test_instance_pod_that_misses_a_probe_has_started() -> None:
    engine = {"name": names.CONTAINER, "started": True, "state": {"running": {}}}
    missed = raw(status={**ready(status="False"), "containerStatuses": [engine]})
    (found,) = instance_pods([missed], UID)
    assert (found.ready, found.started) == (False, True)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (raw(), (False, False, False)),
        (raw(status=ready()), (True, False, False)),
        (raw(status=ready(status="False")), (False, False, False)),
        (raw(status={"phase": "Failed"}), (False, True, False)),
        (raw(status={"phase": "Succeeded"}), (False, True, False)),
        (raw(status=ready(), deletionTimestamp="2026-01-01T00:00:00Z"), (True, False, True)),
        (raw(status=ready(), ownerReferences=[{"uid": "uid-first"}]), (True, False, True)),
        (raw(status=ready(), ownerReferences=None), (True, False, True)),
    ],
)
def test_pods_flags_follow_its_status(pod: dict[str, Any], expected: tuple[bool, ...]) -> None:
    (found,) = instance_pods([pod], UID)
    assert (found.ready, found.failed, found.deleting) == expected


@pytest.mark.parametrize(
    ("notes", "since", "budget_s"),
    [
        ({}, None, MAX_BUDGET_S),
        ({names.DRAINING_SINCE: "yesterday", names.DRAIN_BUDGET: "long"}, None, MAX_BUDGET_S),
        ({names.DRAINING_SINCE: "2026-01-01T00:01:00", names.DRAIN_BUDGET: "0"}, None, 0.0),
        ({names.DRAIN_BUDGET: "nan"}, None, MAX_BUDGET_S),
        ({names.DRAIN_BUDGET: "1e300"}, None, MAX_BUDGET_S),
        ({names.DRAIN_BUDGET: "-1"}, None, MAX_BUDGET_S),
    ],
)
def test_invalid_drain_annotations_are_ignored(
    notes: dict[str, str], since: datetime | None, budget_s: float
) -> None:
    (found,) = instance_pods([raw(annotations=notes)], UID)
    assert (found.draining_since, found.drain_budget_s) == (since, budget_s)


def test_server_counts_pods_with_a_deletion_timestamp_as_terminating() -> None:
    ending = raw(deletionTimestamp="2026-01-01T00:00:00Z")
    another = raw(ownerReferences=[{"uid": "uid-first"}])
    found = [instance_pods([pod], UID)[0] for pod in (raw(), ending, another)]
    assert [pod.terminating for pod in found] == [False, True, False]


def test_instances_come_in_the_order_of_their_numbers() -> None:
    pods = [raw(f"llama-instance-{number}") for number in (10, 2, 1)]
    pods.append(raw("llama-head-abc", labels={names.COMPONENT: "head"}))
    assert [pod.instance for pod in instance_pods(pods, UID)] == [
        "instance-1",
        "instance-2",
        "instance-10",
    ]


def test_server_pod_counts_follow_its_deployment() -> None:
    deployment = raw("llama-head", annotations={names.REVISION: "abc"})
    deployment["spec"] = {"replicas": 2}
    found = server(deployment, [])
    assert found and (found.ready, found.desired_replicas, found.revision) == (0, 2, "abc")
    deployment["status"] = {"readyReplicas": 1}
    found = server(deployment, [])
    assert found and found.ready == 1
    assert server(None, []) is None


@pytest.mark.parametrize(
    ("status", "rolled_out"),
    [
        ({}, False),
        ({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2}, True),
        ({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2}, False),
        ({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 1}, False),
        ({"observedGeneration": 2, "replicas": 3, "updatedReplicas": 2}, False),
    ],
)
def test_server_is_rolled_out_when_no_pod_is_of_an_earlier_template(
    status: dict[str, int], rolled_out: bool
) -> None:
    deployment = raw("llama-ingress", status={"readyReplicas": 2, **status})
    deployment["metadata"]["generation"] = 2
    deployment["spec"] = {"replicas": 2}
    found = server(deployment, [])
    assert found and (found.rolled_out, found.complete) == (rolled_out, rolled_out)


LOST = {**ready(status="False"), "containerStatuses": [{"ready": True}]}


@pytest.mark.parametrize(
    ("revision", "status", "expected"),
    [
        ("new", ready(), False),
        ("old", ready(), True),
        ("", ready(), True),
        ("old", ready(status="False"), True),
        ("old", {"phase": "Failed"}, False),
        ("old", {"phase": "Succeeded"}, False),
        ("old", LOST, False),
    ],
)
@pytest.mark.parametrize("deletion", [{}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}])
def test_server_has_outdated_pods_until_the_last_has_ended_or_its_node_is_lost(
    revision: str, status: dict[str, Any], expected: bool, deletion: dict[str, str]
) -> None:
    deployment = raw("llama-ingress", annotations={names.REVISION: "new"})
    pod = raw("p", annotations={names.REVISION: revision}, status=status, **deletion)
    found = server(deployment, [raw("q", annotations={names.REVISION: "new"}), pod])
    assert found and found.has_outdated_pods == expected


HEAD = {names.COMPONENT: "head"}


OF_HEAD: dict[str, Any] = {"ownerReferences": [{"uid": "uid-set"}]}
DEPLOYMENT = raw("llama-head", uid="uid-deployment")
REPLICA_SET = raw("llama-head-1", uid="uid-set", ownerReferences=[{"uid": "uid-deployment"}])


@pytest.mark.parametrize(
    ("pods", "address"),
    [
        ([], None),
        ([raw("h", labels=HEAD, **OF_HEAD)], None),
        ([raw("h", labels=HEAD, **OF_HEAD, status=ready("10.0.0.1"))], "10.0.0.1"),
        ([raw("h", labels=HEAD, **OF_HEAD, status=ready("10.0.0.1", "False"))], None),
        ([raw("h", labels=HEAD, **OF_HEAD, status=ready("10.0.0.1"), deletionTimestamp="x")], None),
        ([raw("i", status=ready("10.0.0.9"))], None),
        (
            [
                raw("h1", labels=HEAD, **OF_HEAD, status=ready("10.0.0.1")),
                raw(
                    "h2",
                    labels=HEAD,
                    **OF_HEAD,
                    status=ready("10.0.0.2"),
                    creationTimestamp="2026-01-02T00:00:00Z",
                ),
            ],
            "10.0.0.2",
        ),
    ],
)
def test_head_is_the_newest_ready_pod(pods: list[dict[str, Any]], address: str | None) -> None:
    assert head_address(pods, [REPLICA_SET], DEPLOYMENT, UID) == address


def test_pod_with_the_heads_labels_that_is_not_of_its_deployment_is_no_head() -> None:
    own = raw("h1", labels=HEAD, **OF_HEAD, status=ready("10.0.0.1"))
    newer: dict[str, Any] = {
        "status": ready("6.6.6.6"),
        "creationTimestamp": "2026-01-02T00:00:00Z",
    }
    for owners in ([], [{"uid": UID}], [{"uid": "another-set"}], [{"uid": "uid-deployment"}]):
        stranger = raw("h2", labels=HEAD, ownerReferences=owners, **newer)
        assert head_address([own, stranger], [REPLICA_SET], DEPLOYMENT, UID) == "10.0.0.1"
        assert head_address([stranger], [REPLICA_SET], DEPLOYMENT, UID) is None


def test_deployment_or_replica_set_of_another_owner_has_no_head() -> None:
    pods = [raw("h1", labels=HEAD, **OF_HEAD, status=ready("10.0.0.1"))]
    stranger = [{"uid": "another"}]
    other_set = raw("s", uid="uid-set", ownerReferences=stranger)
    other_deployment = raw("d", uid="uid-deployment", ownerReferences=stranger)
    assert head_address(pods, [other_set], DEPLOYMENT, UID) is None
    assert head_address(pods, [REPLICA_SET], other_deployment, UID) is None
    assert head_address(pods, [REPLICA_SET], None, UID) is None
