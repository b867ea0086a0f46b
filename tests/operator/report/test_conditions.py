"""Conditions describe a reconcile, and change when it does."""

from dataclasses import replace
from datetime import timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.reconcile_results import (
    NOW,
    PROBLEM,
    manifest,
    observation,
    pod,
    reconcile_result,
    target,
)

from macroserve.core.scaling.decisions import SetPool
from macroserve.core.scaling.fleet import FleetPlan
from macroserve.core.status import Pool
from macroserve.operator.observe.observation import Problem, ServerState
from macroserve.operator.report.conditions import (
    ConditionType,
    Reason,
    condition,
    conditions,
    invalid,
)
from macroserve.operator.report.reconcile_result import ReconcileResult

DELETED = "The MacroInstance is being deleted."
ARRANGE = FleetPlan((SetPool("instance-1", Pool.HP, "It should be 2."),), ())
AUTOSCALED = manifest(autoscaling={"minInstances": 1, "maxInstances": 8})
STARTING = replace(pod(2), ready=False)
IMAGE = Problem("ImagePullBackOff", "The image cannot be pulled.")


def of_pods(*pods: Any, **more: Any) -> ReconcileResult:
    return reconcile_result(observation(pods=pods, **more))


def said(found: ReconcileResult, type_: ConditionType) -> tuple[str, str, str]:
    one = condition(conditions(found), type_)
    return one["status"], one["reason"], one["message"]


RECONCILED = reconcile_result()
READY = [
    (RECONCILED, "True", "Serving", "3 of 3 instances are ready."),
    (
        of_pods(pod(0), pod(1), STARTING),
        *("False", "InstancesUnavailable", "2 of 3 instances are ready."),
    ),
    (
        of_pods(pod(0), pod(1), replace(pod(2), draining_since=NOW)),
        *("False", "InstancesUnavailable", "2 of 3 instances are ready."),
    ),
    (
        of_pods(pod(0), pod(1), replace(pod(2), deleting=True)),
        *("False", "InstancesUnavailable", "2 of 3 instances are ready."),
    ),
    (
        # Ready by its probe, and in no cell yet.
        reconcile_result(replace(observation(), report=observation(pods=(pod(0), pod(1))).report)),
        *("False", "InstancesUnavailable", "2 of 3 instances are ready."),
    ),
    # Which cells hold them is not known, wholly or in part: they are not known to be outside.
    (reconcile_result(observation(report=None)), "True", "Serving", "3 of 3 instances are ready."),
    (
        reconcile_result(
            replace(
                observation(running_cells=frozenset({"cell-0", "cell-1"})),
                report=observation(pods=(pod(0), pod(1))).report,
            )
        ),
        *("True", "Serving", "3 of 3 instances are ready."),
    ),
    (
        reconcile_result(observation(head=ServerState(0, 1), report=None)),
        *("False", "HeadUnavailable"),
        "The head, which runs the cell schedulers, is not ready. 3 of 3 instances are ready.",
    ),
    (
        reconcile_result(observation(head=None, ingress=None, pods=(), report=None)),
        *("False", "HeadUnavailable"),
        "The head, which runs the cell schedulers, is not ready. 0 of 3 instances are ready.",
    ),
    (
        reconcile_result(observation(ingress=ServerState(0, 2))),
        *("False", "IngressUnavailable"),
        "No ingress is ready. 3 of 3 instances are ready.",
    ),
    (
        reconcile_result(observation(ingress=ServerState(1, 2))),
        "True",
        "Serving",
        "3 of 3 instances are ready.",
    ),
    (
        # What autoscaling adds to what was asked for is not waited for.
        reconcile_result(observation(manifest=AUTOSCALED), target(5)),
        *("True", "Serving", "3 of 5 instances are ready."),
    ),
    (
        reconcile_result(observation(manifest=AUTOSCALED, pods=(pod(0),)), target(1)),
        *("True", "Serving", "1 of 1 instances are ready."),
    ),
]


@pytest.mark.parametrize(("found", "status", "reason", "message"), READY)
def test_ready_condition_follows_the_serving_instances(
    found: ReconcileResult, status: str, reason: str, message: str
) -> None:
    assert said(found, ConditionType.READY) == (status, reason, message)


MANY = tuple(replace(pod(number), ready=False) for number in range(8))
PROGRESSING = [
    (RECONCILED, "False", "Reconciled", "All 3 instances are ready."),
    (
        of_pods(pod(0), pod(1), STARTING),
        *("True", "Scaling", "Desired instances: 3. Starting: instance-2."),
    ),
    (reconcile_result(desired=target(5)), "True", "Scaling", "Desired instances: 5."),
    (
        of_pods(pod(0), pod(1), replace(STARTING, failed=True)),
        *("True", "Scaling", "Desired instances: 3."),
    ),
    (
        reconcile_result(observation(pods=MANY, report=None), target(8)),
        *("True", "Scaling"),
        "Desired instances: 8. Starting: instance-0, instance-1, instance-2, instance-3, "
        "instance-4 and 3 more. The head does not answer.",
    ),
    (
        of_pods(*(pod(n) for n in range(3)), replace(pod(3), draining_since=NOW)),
        *("True", "Scaling", "Desired instances: 3. Draining: instance-3."),
    ),
    (
        of_pods(
            *(pod(n) for n in range(3)),
            replace(pod(3), draining_since=NOW, deleting=True),
        ),
        *("True", "Scaling", "Desired instances: 3. Ending: instance-3."),
    ),
    (
        of_pods(pod(0), pod(1), replace(pod(2), revision="old")),
        *("True", "RollingOut", "Instances of an earlier revision: instance-2."),
    ),
    (
        reconcile_result(observation(ingress=ServerState(2, 2, rolled_out=False))),
        *("True", "StartingServers", "Not ready: the ingress."),
    ),
    (
        reconcile_result(observation(ingress=ServerState(1, 2))),
        *("True", "StartingServers", "Not ready: the ingress."),
    ),
    (
        reconcile_result(observation(head=None, ingress=None)),
        *("True", "StartingServers", "Not ready: the head, the ingress."),
    ),
    (
        reconcile_result(observation(report=None)),
        *("True", "StartingServers", "The head does not answer."),
    ),
    (
        reconcile_result(plan=ARRANGE),
        *("True", "Rebalancing", "Instances are migrating between cells or pools."),
    ),
    (
        reconcile_result(observation(deleting=True, pods=(replace(pod(0), draining_since=NOW),))),
        *("True", "Deleting", "The MacroInstance is being deleted. Draining: instance-0."),
    ),
]


@pytest.mark.parametrize(("found", "status", "reason", "message"), PROGRESSING)
def test_progressing_condition_follows_the_actions_under_way(
    found: ReconcileResult, status: str, reason: str, message: str
) -> None:
    assert said(found, ConditionType.PROGRESSING) == (status, reason, message)


OOM = "OOMKilled. It was killed because it used more memory than its limit of 1Gi."
FAILING = tuple(replace(pod(n), problem=PROBLEM) for n in range(5))
DEGRADED = [
    (RECONCILED, "False", "NoProblem", "No problem is known."),
    (
        of_pods(pod(0), replace(pod(1), problem=PROBLEM)),
        *("True", "OOMKilled", f"instance-1: {OOM}"),
    ),
    (
        of_pods(*FAILING),
        *("True", "OOMKilled"),
        f"instance-0: {OOM} instance-1: {OOM} instance-2: {OOM} And 2 more.",
    ),
    (
        of_pods(replace(pod(0), problem=PROBLEM), head=ServerState(0, 1, problem=IMAGE)),
        *("True", "ImagePullBackOff"),
        f"The head: ImagePullBackOff. The image cannot be pulled. instance-0: {OOM}",
    ),
    (
        reconcile_result(observation(ingress=ServerState(0, 1, problem=IMAGE))),
        *("True", "ImagePullBackOff"),
        "The ingress: ImagePullBackOff. The image cannot be pulled.",
    ),
    (
        reconcile_result(
            observation(ingress=ServerState(0, 1, problem=IMAGE)),
            refusals=(Problem("Forbidden", "The API server refuses pod a: quota."),),
        ),
        *("True", "Forbidden"),
        "Forbidden. The API server refuses pod a: quota. "
        "The ingress: ImagePullBackOff. The image cannot be pulled.",
    ),
]


@pytest.mark.parametrize(("found", "status", "reason", "message"), DEGRADED)
def test_degraded_condition_names_the_worst_problem(
    found: ReconcileResult, status: str, reason: str, message: str
) -> None:
    assert said(found, ConditionType.DEGRADED) == (status, reason, message)


WAITS = {"able": False, "reason": "It waits until load has been low for 300 s."}
BLIND = {"able": False, "metrics_available": False, "reason": "Nothing is heard."}
SCALED = observation(manifest=AUTOSCALED)
SCALING = [
    (
        RECONCILED,
        *("True", "ManualScaling"),
        "spec.instances sets the number; kubectl scale or an autoscaler may change it.",
        *("Unknown", "NotNeeded", "Metrics are not needed without spec.autoscaling."),
    ),
    (
        reconcile_result(
            SCALED,
            target(
                metrics_available=True,
                reason="2 are needed.",
            ),
        ),
        *("True", "AutoscalingActive"),
        "The autoscaler sets the number of instances, 1 to 8. 2 are needed.",
        *("True", "MetricsReceived", "Load and attainment are known."),
    ),
    (
        reconcile_result(SCALED, target(metrics_available=True, **WAITS)),
        *("False", "Stabilizing", "It waits until load has been low for 300 s."),
        *("True", "MetricsReceived", "Load and attainment are known."),
    ),
    (
        reconcile_result(SCALED, target(**BLIND)),
        *("False", "NoMetrics", "Nothing is heard."),
        *("False", "NoMetrics", "Nothing is heard."),
    ),
    (
        reconcile_result(replace(SCALED, deleting=True), target(reason=DELETED)),
        *("False", "Deleting", "The MacroInstance is being deleted."),
        *("Unknown", "NotNeeded", "The MacroInstance is being deleted."),
    ),
]


@pytest.mark.parametrize(
    ("found", "able", "able_why", "able_text", "known", "known_why", "known_text"), SCALING
)
def test_scaling_conditions_follow_autoscaling_and_metrics(
    found: ReconcileResult,
    able: str,
    able_why: str,
    able_text: str,
    known: str,
    known_why: str,
    known_text: str,
) -> None:
    assert said(found, ConditionType.ABLE_TO_SCALE) == (able, able_why, able_text)
    assert said(found, ConditionType.METRICS_AVAILABLE) == (known, known_why, known_text)


def test_conditions_are_five_with_their_generation() -> None:
    found = conditions(RECONCILED)
    assert [one["type"] for one in found] == [
        "Ready",
        "Progressing",
        "Degraded",
        "AbleToScale",
        "MetricsAvailable",
    ]
    assert {one["observedGeneration"] for one in found} == {4}
    assert {one["lastTransitionTime"] for one in found} == {"2026-03-01T12:00:00Z"}


def test_transition_time_is_in_utc() -> None:
    found = reconcile_result(observation(now=NOW.astimezone(timezone(timedelta(hours=5)))))
    assert {one["lastTransitionTime"] for one in conditions(found)} == {"2026-03-01T12:00:00Z"}


def test_transition_time_changes_with_the_status_alone() -> None:
    before = conditions(RECONCILED)
    later = observation(
        now=NOW + timedelta(minutes=5),
        pods=(pod(0), pod(1), STARTING),
        status={"conditions": before},
        generation=5,
    )
    after = conditions(reconcile_result(later))
    times = {one["type"]: one["lastTransitionTime"] for one in after}
    assert times["Ready"] == times["Progressing"] == "2026-03-01T12:05:00Z"
    assert times["Degraded"] == times["AbleToScale"] == "2026-03-01T12:00:00Z"
    assert {one["observedGeneration"] for one in after} == {5}


def test_transition_time_is_kept_when_only_the_reason_changes() -> None:
    before = conditions(of_pods(pod(0), pod(1), STARTING))
    later = observation(
        now=NOW + timedelta(minutes=5), head=ServerState(0, 1), status={"conditions": before}
    )
    ready = condition(conditions(reconcile_result(later)), ConditionType.READY)
    assert ready["reason"] == "HeadUnavailable"
    assert ready["lastTransitionTime"] == "2026-03-01T12:00:00Z"


BAD = ("spec.instances is 0, must be a whole number of at least 1.", "spec.x is unknown.")


def test_invalid_spec_keeps_the_conditions_of_the_running_fleet() -> None:
    before = conditions(RECONCILED)
    after = invalid(BAD, before, 5, NOW + timedelta(minutes=1))
    degraded = condition(after, ConditionType.DEGRADED)
    assert (degraded["status"], degraded["reason"]) == ("True", "InvalidSpec")
    assert degraded["message"] == (
        "The spec is invalid and was not applied: "
        "spec.instances is 0, must be a whole number of at least 1. spec.x is unknown."
    )
    assert degraded["lastTransitionTime"] == "2026-03-01T12:01:00Z"
    for old, new in zip(before, after, strict=True):
        assert new["observedGeneration"] == 5
        if new["type"] != "Degraded":
            assert {**old, "observedGeneration": 5} == new


def test_spec_that_was_never_valid_is_not_ready() -> None:
    said = {one["type"]: (one["status"], one["reason"]) for one in invalid(BAD, (), 1, NOW)}
    assert said == {
        "Ready": ("False", "InvalidSpec"),
        "Progressing": ("Unknown", "InvalidSpec"),
        "Degraded": ("True", "InvalidSpec"),
        "AbleToScale": ("Unknown", "InvalidSpec"),
        "MetricsAvailable": ("Unknown", "InvalidSpec"),
    }


def test_corrected_spec_clears_the_invalid_reason() -> None:
    broken = invalid(BAD, conditions(RECONCILED), 5, NOW)
    mended = conditions(reconcile_result(observation(status={"conditions": broken})))
    assert all(one["reason"] != Reason.INVALID_SPEC for one in mended)


STATES = st.fixed_dictionaries(
    {},
    optional={
        "ready": st.booleans(),
        "deleting": st.booleans(),
        "failed": st.booleans(),
        "draining_since": st.sampled_from([None, NOW]),
        "revision": st.sampled_from(["new", "old"]),
        "problem": st.sampled_from([None, PROBLEM]),
    },
)


@given(
    states=st.lists(STATES, max_size=5),
    head=st.sampled_from(
        [None, ServerState(0, 1), ServerState(1, 1), ServerState(0, 1, problem=IMAGE)]
    ),
    knows_cells=st.booleans(),
    wanted=st.integers(1, 6),
)
def test_conditions_of_any_reconcile_agree(
    states: list[dict[str, Any]], head: ServerState | None, knows_cells: bool, wanted: int
) -> None:
    pods = tuple(replace(pod(number), **state) for number, state in enumerate(states))
    usual = observation(pods=pods, head=head)
    found = reconcile_result(usual if knows_cells else replace(usual, report=None), target(wanted))
    said = {one["type"]: one for one in conditions(found)}
    assert (said["Degraded"]["status"] == "True") == bool(found.issues)
    if said["Progressing"]["status"] == "False":
        assert said["Ready"]["status"] == "True"
    for one in said.values():
        assert one["reason"].isidentifier() and one["reason"][0].isupper()
        assert one["message"].endswith(".") and "  " not in one["message"]
    # Nothing has happened, so nothing changes.
    later = replace(
        found.observation,
        now=NOW + timedelta(hours=1),
        status={"conditions": list(said.values())},
    )
    assert conditions(replace(found, observation=later)) == list(said.values())
