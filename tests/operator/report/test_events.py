"""A change has one Event, at the time when it happens."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from support.reconcile_results import (
    NOW,
    PROBLEM,
    manifest,
    observation,
    pod,
    reconcile_result,
    target,
)

from macroserve.core.scaling.decisions import Add, Merge, Remove, SetPool, Split
from macroserve.core.scaling.fleet import (
    Action,
    Attach,
    DeleteCell,
    DeployCell,
    Drain,
    FleetPlan,
    Migrate,
    Relabel,
    Start,
    Stop,
)
from macroserve.core.status import Pool
from macroserve.operator.observe.observation import Problem, ServerState
from macroserve.operator.observe.target import Change
from macroserve.operator.report.conditions import conditions, invalid
from macroserve.operator.report.events import MAX_MESSAGE_CHARS, Recorder
from macroserve.operator.report.reconcile_result import ReconcileResult
from macroserve.operator.report.status import status

NOTHING = FleetPlan((), ())
SPLIT = Split("cell-0", "cell-1", ("instance-1", "instance-2"), "cell-0 has 7 instances.")
MERGE = Merge("cell-1", "cell-0", "They fit into one cell.")
PRIORITY = SetPool("instance-1", Pool.HP, "1 of 3 is, should be 2.")
ADD = Add("cell-0", "instance-3", Pool.LP, "3 of 4 desired instances exist.")
REMOVE = Remove("cell-0", "instance-2", "3 instances exist, 2 are desired.")
ROLL = Drain("instance-1", "cell-0", "It is replaced.")


def recorder(**known: Any) -> Recorder:
    metadata = {"name": "llama", "namespace": "team", "uid": "u-1"}
    return Recorder({"metadata": metadata, **({"status": known} if known else {})})


def settled() -> Recorder:
    """Return a recorder that has reported a MacroInstance as it should be."""
    return recorder(conditions=conditions(reconcile_result()))


def told(to: Recorder, found: ReconcileResult) -> list[tuple[str, str, str]]:
    """Return type, reason and message of the Events of one reconcile."""
    decided = to.decide(found.plan, found.observation.now)
    events = to.events(found, decided, status(found, to.decisions))
    return [(event["type"], event["reason"], event["message"]) for event in events]


def reasons(to: Recorder, found: ReconcileResult) -> list[str]:
    return [reason for _, reason, _ in told(to, found)]


def test_reconcile_without_a_change_has_no_events() -> None:
    to = settled()
    assert told(to, reconcile_result()) == []
    assert told(to, reconcile_result(observation(now=NOW + timedelta(days=1)))) == []


@pytest.mark.parametrize(
    ("decision", "reason", "message"),
    [
        (
            SPLIT,
            "Split",
            "Split cell-0: instance-1, instance-2 to cell-1. cell-0 has 7 instances.",
        ),
        (MERGE, "Merged", "Merge cell-1 into cell-0. They fit into one cell."),
        (PRIORITY, "RatioChanged", "Move instance-1 to the HP pool. 1 of 3 is, should be 2."),
    ],
)
def test_decision_has_an_event(decision: Any, reason: str, message: str) -> None:
    assert told(settled(), reconcile_result(plan=FleetPlan((decision,), ()))) == [
        ("Normal", reason, message)
    ]


STEPS = [
    (
        Start("instance-3", "cell-0", Pool.LP),
        ("InstanceAdded", "instance-3 (LP) starts for cell-0. 3 of 4 desired instances exist."),
    ),
    (
        Start("instance-4", "cell-0", Pool.HP),
        ("InstanceAdded", "instance-4 (HP) starts for cell-0."),
    ),
    (
        Attach("instance-3", "cell-0"),
        ("InstanceReady", "instance-3 is ready in cell-0."),
    ),
    (
        Migrate("instance-1", "cell-1", Pool.LP),
        ("HandleMigrated", "instance-1 (LP) migrated to cell-1; its streams continue."),
    ),
    (
        Drain("instance-2", "cell-0", "Two are desired."),
        ("InstanceDraining", "instance-2 takes no new requests. Two are desired."),
    ),
    (
        Stop("instance-2", "It has drained."),
        ("InstanceRemoved", "instance-2 is stopped. It has drained."),
    ),
    (Relabel("instance-3", "cell-1", Pool.LP), None),
    (DeployCell("cell-1"), None),
    (DeleteCell("cell-1"), None),
]


@pytest.mark.parametrize(("action", "event"), STEPS)
def test_completed_action_has_an_event(action: Action, event: tuple[str, str] | None) -> None:
    plan = FleetPlan((ADD,), (action,))
    assert told(settled(), reconcile_result(plan=plan)) == [], "it was not carried out"
    expected = [("Normal", *event)] if event else []
    assert told(settled(), reconcile_result(plan=plan, done=(action,))) == expected


@pytest.mark.parametrize(
    ("change", "event"),
    [
        (Change(NOW, 3, 5, "Load grows."), ("ScaledUp", "From 3 to 5 instances. Load grows.")),
        (Change(NOW, 5, 3, "It is idle."), ("ScaledDown", "From 5 to 3 instances. It is idle.")),
    ],
)
def test_change_of_the_desired_instances_has_an_event(
    change: Change, event: tuple[str, str]
) -> None:
    found = reconcile_result(desired=target(3, change=change))
    assert told(settled(), found) == [("Normal", *event)]


STARTING = observation(pods=(pod(0), pod(1), replace(pod(2), ready=False)))
OLD = observation(pods=(pod(0), pod(1), replace(pod(2), revision="old")))
NO_HEAD = observation(head=ServerState(0, 1), report=None)
NO_INGRESS = observation(ingress=ServerState(0, 2))
AUTOSCALED = observation(manifest=manifest(autoscaling={"minInstances": 1, "maxInstances": 8}))
BLIND = reconcile_result(AUTOSCALED, target(metrics_available=False, reason="No metrics."))
SEEING = reconcile_result(AUTOSCALED, target(metrics_available=True))
HEADLESS = "The head, which runs the cell schedulers, is not ready. 3 of 3 instances are ready."

TRANSITIONS = [
    (
        reconcile_result(STARTING),
        reconcile_result(),
        [("Normal", "Ready", "3 of 3 instances are ready.")],
    ),
    (
        reconcile_result(NO_HEAD),
        reconcile_result(),
        [("Normal", "Ready", "3 of 3 instances are ready.")],
    ),
    (reconcile_result(), reconcile_result(STARTING), []),
    (reconcile_result(), reconcile_result(NO_HEAD), [("Warning", "HeadUnavailable", HEADLESS)]),
    (
        reconcile_result(),
        reconcile_result(NO_INGRESS),
        [
            (
                *("Warning", "IngressUnavailable"),
                "No ingress is ready. 3 of 3 instances are ready.",
            )
        ],
    ),
    (reconcile_result(STARTING), reconcile_result(NO_HEAD), []),
    (
        reconcile_result(),
        reconcile_result(OLD),
        [("Normal", "RolloutStarted", "Instances of an earlier revision: instance-2.")],
    ),
    (
        reconcile_result(OLD),
        reconcile_result(),
        [("Normal", "RolloutFinished", "Every instance runs the current revision.")],
    ),
    (reconcile_result(OLD), reconcile_result(OLD), []),
    (SEEING, BLIND, [("Warning", "MetricsUnavailable", "No metrics.")]),
    (BLIND, SEEING, [("Normal", "MetricsAvailable", "Load and attainment are known.")]),
    (reconcile_result(), SEEING, []),
    (BLIND, BLIND, []),
]


@pytest.mark.parametrize(("before", "after", "events"), TRANSITIONS)
def test_change_of_a_condition_has_an_event(
    before: ReconcileResult, after: ReconcileResult, events: list[tuple[str, str, str]]
) -> None:
    to = recorder()
    told(to, before)
    assert told(to, after) == events
    assert told(to, after) == []


@pytest.mark.parametrize(("before", "after", "events"), TRANSITIONS)
def test_restarted_operator_has_the_events_since_the_status(
    before: ReconcileResult, after: ReconcileResult, events: list[tuple[str, str, str]]
) -> None:
    assert told(recorder(conditions=conditions(before)), after) == events


def test_first_start_of_an_instance_has_no_loss_event() -> None:
    first = reconcile_result(observation(head=None, ingress=None, pods=(), report=None))
    assert told(recorder(), first) == []


OOM = "OOMKilled. It was killed because it used more memory than its limit of 1Gi."
IMAGE = Problem("ImagePullBackOff", "It cannot be pulled.")
QUOTA = Problem("Forbidden", "The API server refuses pod llama-instance-3: quota.")


@pytest.mark.parametrize(
    ("found", "event"),
    [
        (
            reconcile_result(observation(pods=(pod(0), pod(1), replace(pod(2), problem=PROBLEM)))),
            ("InstanceFailed", f"instance-2: {OOM}"),
        ),
        (
            reconcile_result(observation(head=ServerState(1, 1, problem=IMAGE))),
            ("HeadUnavailable", "The head: ImagePullBackOff. It cannot be pulled."),
        ),
        (
            reconcile_result(observation(ingress=ServerState(2, 2, problem=IMAGE))),
            ("IngressUnavailable", "The ingress: ImagePullBackOff. It cannot be pulled."),
        ),
        (reconcile_result(refusals=(QUOTA,)), ("Forbidden", f"Forbidden. {QUOTA.message}")),
    ],
)
def test_new_problem_has_an_event(found: ReconcileResult, event: tuple[str, str]) -> None:
    to = settled()
    assert told(to, found) == [("Warning", *event)]
    assert told(to, found) == []
    assert told(to, reconcile_result()) == []
    assert told(to, found) == [("Warning", *event)]


def test_plan_that_lasts_is_one_decision() -> None:
    to = settled()
    waits = reconcile_result(plan=FleetPlan((SPLIT, ADD), ()))
    assert reasons(to, waits) == ["Split"]
    assert reasons(to, waits) == []
    varied = FleetPlan((replace(SPLIT, reason="It has 8."), ADD), ())
    assert reasons(to, reconcile_result(plan=varied)) == []
    assert [decision.what for decision in to.decisions] == [
        "Split cell-0: instance-1, instance-2 to cell-1",
        "Add instance-3 (LP) to cell-0",
    ]
    assert to.decisions[0].reason == "cell-0 has 7 instances."
    assert reasons(to, reconcile_result()) == []
    assert reasons(to, waits) == ["Split"], "decided anew"
    assert len(to.decisions) == 4


def test_decision_of_an_earlier_process_is_not_repeated() -> None:
    first = settled()
    plan = FleetPlan((SPLIT,), ())
    told(first, reconcile_result(plan=plan))
    second = recorder(**status(reconcile_result(plan=plan), first.decisions))
    assert told(second, reconcile_result(plan=plan)) == []
    assert [d.what for d in second.decisions] == [d.what for d in first.decisions]


def test_decisions_tell_removals_and_rollouts_apart() -> None:
    to = settled()
    drain = Drain("instance-2", "cell-0", REMOVE.reason)
    to.decide(FleetPlan((REMOVE,), (drain,)), NOW)
    to.decide(FleetPlan((), (ROLL,)), NOW)
    assert [str(decision) for decision in to.decisions] == [
        "Remove instance-2 from cell-0. 3 instances exist, 2 are desired.",
        "Replace instance-1. It is replaced.",
    ]


def test_event_recorder_keeps_the_last_twenty_decisions() -> None:
    to = settled()
    for number in range(30):
        to.decide(FleetPlan((replace(ADD, instance=f"instance-{number}"),), ()), NOW)
    assert len(to.decisions) == 20
    assert to.decisions[-1].what == "Add instance-29 (LP) to cell-0"


def move_at(now: datetime) -> ReconcileResult:
    action = Migrate("instance-1", "cell-1", Pool.LP)
    return reconcile_result(observation(now=now), plan=FleetPlan((), (action,)), done=(action,))


def test_event_object_has_the_fields_of_the_api() -> None:
    to = settled()
    (event,) = to.events(move_at(NOW), (), status(reconcile_result(), ()))
    name = event["metadata"].pop("name")
    assert name.startswith("llama.") and len(name) < 63
    about = {
        "apiVersion": "macroserve.io/v1alpha1",
        "kind": "MacroInstance",
        "name": "llama",
        "namespace": "team",
        "uid": "u-1",
    }
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "team"},
        "involvedObject": about,
        "reason": "HandleMigrated",
        "message": "instance-1 (LP) migrated to cell-1; its streams continue.",
        "type": "Normal",
        "source": {"component": "macroserve-operator"},
        "reportingComponent": "macroserve-operator",
        "firstTimestamp": "2026-03-01T12:00:00Z",
        "lastTimestamp": "2026-03-01T12:00:00Z",
        "count": 1,
    }


def test_repeated_event_is_one_with_a_count() -> None:
    to = settled()
    times = [NOW, NOW + timedelta(minutes=40), NOW + timedelta(minutes=80)]
    events = [to.events(move_at(now), (), status(reconcile_result(), ()))[0] for now in times]
    assert [event["count"] for event in events] == [1, 2, 3]
    assert len({event["metadata"]["name"] for event in events}) == 1
    assert {event["firstTimestamp"] for event in events} == {"2026-03-01T12:00:00Z"}
    assert events[-1]["lastTimestamp"] == "2026-03-01T13:20:00Z"


def test_event_repeated_after_an_hour_is_a_new_one() -> None:
    to = settled()
    times = [NOW, NOW + timedelta(minutes=61)]
    first, second = (
        to.events(move_at(now), (), status(reconcile_result(), ()))[0] for now in times
    )
    assert second["count"] == 1
    assert first["metadata"]["name"] != second["metadata"]["name"]


def test_events_of_one_moment_have_different_names() -> None:
    actions = (Migrate("instance-1", "cell-1", Pool.LP), Migrate("instance-2", "cell-1", Pool.LP))
    found = reconcile_result(plan=FleetPlan((), actions), done=actions)
    events = settled().events(found, (), status(found, ()))
    assert len({event["metadata"]["name"] for event in events}) == 2


def test_event_with_a_long_message_is_cut() -> None:
    refused = Problem("Invalid", "x" * 2000)
    found = reconcile_result(refusals=(refused,))
    (event,) = settled().events(found, (), status(found, ()))
    assert len(event["message"]) == MAX_MESSAGE_CHARS


BAD = ["spec.instances is 0, must be a whole number of at least 1.", "spec.x is unknown."]


def test_invalid_spec_has_one_event() -> None:
    to = settled()
    after = {"conditions": invalid(BAD, conditions(reconcile_result()), 5, NOW)}
    (event,) = to.invalid(BAD, after, NOW)
    assert (event["type"], event["reason"]) == ("Warning", "InvalidSpec")
    assert event["message"] == " ".join(BAD)
    assert to.invalid(BAD, after, NOW) == ()
    worse = {"conditions": invalid(BAD[:1], after["conditions"], 6, NOW)}
    assert len(to.invalid(BAD[:1], worse, NOW)) == 1
    assert told(to, reconcile_result()) == []
