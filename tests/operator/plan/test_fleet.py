"""An Observation has the fleet's pods and necessary repairs."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.fake_deployment import resource

from macroserve.api.manifest import parse
from macroserve.api.messages import CellReport, InstanceReport, Report
from macroserve.core.scaling.fleet import Member, MemberState, Relabel
from macroserve.core.status import CellView, InstanceStatus, Pool
from macroserve.operator.observe.observation import InstancePod, Observation, Problem
from macroserve.operator.plan.fleet import Detach, ForceDelete, RetryDrain, fleet, repair_actions

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ADDRESS = "10.0.0.5"


def pod(**fields: Any) -> InstancePod:
    """Return a pod that is ready and in no cell, unless fields say otherwise."""
    given: dict[str, Any] = {"address": ADDRESS, "ready": True, "revision": "now", **fields}
    return InstancePod("instance-0", "llama-instance-0", "cell-0", Pool.LP, **given)


def reported(address: str = ADDRESS, **fields: Any) -> InstanceReport:
    status = InstanceStatus(
        seq=1,
        num_running=fields.pop("num_running", 0),
        num_waiting=fields.pop("num_waiting", 0),
        remaining_tokens=fields.pop("remaining_tokens", 0),
    )
    given: dict[str, Any] = {"pool": Pool.LP, "in_flight": 0, **fields}
    return InstanceReport(
        name="instance-0", address=f"http://{address}:8000", status=status, age_s=0.1, **given
    )


def observation(
    *pods: InstancePod,
    cells: dict[str, list[InstanceReport]] | None = None,
    running: set[str] | None = None,
) -> Observation:
    """Return an observation of a fleet. `cells` are those that the head reports, or None if the
    head does not answer; `running` are the same by default."""
    report = None
    if cells is not None:
        running = set(cells) if running is None else running
        views = {name: CellView(name, tuple(i.name for i in of)) for name, of in cells.items()}
        report = Report(tuple(CellReport(views[name], tuple(cells[name])) for name in cells))
    return Observation(
        now=NOW,
        name="llama",
        namespace="team",
        uid="uid-llama",
        generation=1,
        deleting=False,
        manifest=parse(resource()),
        revision="now",
        pods=pods,
        head=None,
        ingress=None,
        report=report,
        running_cells=None if running is None else frozenset(running),
        status={},
    )


def member(found: Observation) -> Member:
    (only,) = fleet(found).members
    return only


@pytest.mark.parametrize(
    ("of", "state"),
    [
        (pod(), MemberState.SERVING),
        (pod(ready=False), MemberState.STARTING),
        (pod(ready=False, address=None), MemberState.STARTING),
        (pod(unreachable=True), MemberState.STARTING),
        (pod(ready=False, failed=True), MemberState.FAILED),
        (pod(deleting=True), MemberState.LEAVING),
        (pod(deleting=True, failed=True), MemberState.LEAVING),
    ],
)
def test_state_of_a_member_follows_its_pod(of: InstancePod, state: MemberState) -> None:
    assert member(observation(of, cells={"cell-0": []})).state is state


def test_cell_of_a_member_is_by_its_scheduler_else_by_its_label() -> None:
    in_other = {"cell-0": [], "cell-1": [reported(pool=Pool.HP, remaining_tokens=7)]}
    found = member(observation(pod(), cells=in_other))
    assert (found.cell, found.pool, found.joined, found.remaining_tokens) == (
        "cell-1",
        Pool.HP,
        True,
        7,
    )
    found = member(observation(pod(), cells={"cell-0": []}))
    assert (found.cell, found.pool, found.joined) == ("cell-0", Pool.LP, False)


def test_earlier_pod_of_the_same_name_has_not_joined() -> None:
    found = member(observation(pod(), cells={"cell-0": [reported(address="10.0.0.4")]}))
    assert not found.joined


@pytest.mark.parametrize(
    ("cells", "running", "known"),
    [
        ({"cell-0": []}, {"cell-0"}, True),
        ({}, set(), True),
        ({"cell-0": []}, {"cell-0", "cell-1"}, False),
        ({"cell-0": [], "cell-1": []}, {"cell-0"}, False),
        (None, None, False),
    ],
    ids=["all answer", "there are none", "one does not answer", "one is going", "no head"],
)
def test_cells_are_known_when_all_that_run_answer(
    cells: dict[str, list[InstanceReport]] | None, running: set[str] | None, known: bool
) -> None:
    found = fleet(observation(pod(), cells=cells, running=running))
    assert found.cells == (frozenset(running or ()) if known else None)
    (only,) = found.members
    assert only.joined is not known, "what serves is taken for a member while nobody can tell"


def test_member_of_another_revision_is_outdated() -> None:
    assert not member(observation(pod(), cells={})).outdated
    assert member(observation(pod(revision="before"), cells={})).outdated


DRAINING = pod(draining_since=NOW - timedelta(seconds=60), drain_budget_s=100.0)
LATE = replace(DRAINING, drain_budget_s=59.0)


@pytest.mark.parametrize(
    ("of", "cells", "drained"),
    [
        (DRAINING, {"cell-0": [reported(draining=True)]}, True),
        (DRAINING, {"cell-0": [reported(draining=True, num_running=1)]}, False),
        (DRAINING, {"cell-0": [reported(draining=True, num_waiting=1)]}, False),
        (DRAINING, {"cell-0": [reported(draining=True, in_flight=1)]}, False),
        (DRAINING, {"cell-0": [reported(draining=False)]}, False),
        (DRAINING, {"cell-0": []}, True),
        (DRAINING, {"cell-1": []}, False),
        (DRAINING, None, False),
        (LATE, {"cell-0": [reported(draining=True, num_running=1)]}, True),
        (LATE, None, True),
        (pod(), {"cell-0": [reported()]}, False),
        (pod(), {"cell-0": [reported(draining=True)]}, True),
        (pod(), {"cell-0": [reported(draining=True, num_running=1)]}, False),
    ],
    ids=[
        "idle",
        "it works",
        "requests wait",
        "requests are on their way",
        "idle, but its cell does not know that it drains",
        "its cell has let it go",
        "its cell does not run",
        "nobody can tell",
        "over its budget",
        "over its budget, nobody can tell",
        "it does not drain at all",
        "idle, and its mark is not seen",
        "it works, and its mark is not seen",
    ],
)
def test_member_that_is_idle_released_or_past_its_budget_has_drained(
    of: InstancePod, cells: dict[str, list[InstanceReport]] | None, drained: bool
) -> None:
    assert member(observation(of, cells=cells)).drained is drained


@pytest.mark.parametrize(
    ("of", "cells", "draining"),
    [
        (pod(), {"cell-0": [reported()]}, False),
        (pod(), {"cell-0": [reported(draining=True)]}, True),
        (DRAINING, {"cell-0": [reported()]}, True),
        (DRAINING, None, True),
        (pod(deleting=True), {"cell-0": [reported()]}, True),
        (pod(deleting=True), {"cell-0": []}, False),
    ],
    ids=[
        "it does not",
        "by its own account, before its mark is seen",
        "by its mark, before it knows",
        "by its mark, nobody can tell more",
        "something else ends it",
        "something else ends it, in no cell",
    ],
)
def test_member_with_a_mark_or_by_its_report_drains(
    of: InstancePod, cells: dict[str, list[InstanceReport]] | None, draining: bool
) -> None:
    assert member(observation(of, cells=cells)).draining is draining


LOST = Problem("NodeLost", "Its node does not answer.")
ENDING: dict[str, Any] = {"deleting": True, "terminating": True}


@pytest.mark.parametrize(
    ("of", "cells", "repair"),
    [
        ([pod()], {"cell-0": [reported()]}, []),
        (
            [pod()],
            {"cell-1": [reported(pool=Pool.HP)]},
            [Relabel("instance-0", "cell-1", Pool.HP)],
        ),
        ([DRAINING], {"cell-0": [reported()]}, [RetryDrain("instance-0", "cell-0")]),
        ([DRAINING], {"cell-0": [reported(draining=True)]}, []),
        ([pod(deleting=True)], {"cell-1": [reported()]}, [RetryDrain("instance-0", "cell-1")]),
        ([pod(**ENDING, problem=LOST)], {"cell-0": []}, [ForceDelete("instance-0")]),
        ([pod(**ENDING, problem=LOST)], None, []),
        (
            [pod(**ENDING, problem=LOST)],
            {"cell-0": [reported(draining=True, num_running=1)]},
            [],
        ),
        ([pod(deleting=True, problem=LOST)], {"cell-0": []}, []),
        ([pod(problem=LOST)], {"cell-0": []}, []),
        ([pod(**ENDING, problem=Problem("OOMKilled", ""))], {"cell-0": []}, []),
        ([], {"cell-0": [reported()]}, [Detach("instance-0", "cell-0")]),
        ([pod()], {"cell-0": [reported("10.0.0.4")]}, [Detach("instance-0", "cell-0")]),
        (
            [pod()],
            {"cell-0": [reported()], "cell-1": [reported()]},
            [Detach("instance-0", "cell-1")],
        ),
        ([pod(address=None)], {"cell-0": [reported()]}, []),
        ([DRAINING], None, []),
    ],
    ids=[
        "nothing",
        "labels are behind",
        "the order to drain was lost",
        "it drains",
        "somebody else ends it",
        "its node is lost",
        "its node is lost, nobody can tell whether it works",
        "its node is lost, but it works",
        "its node is lost, and it is not ours",
        "its node is lost, but it was not told to go",
        "it was told to go for another reason",
        "its pod is gone",
        "another pod has its name now",
        "two cells hold it",
        "a pod whose address is not known",
        "nobody can tell",
    ],
)
def test_fleet_that_an_earlier_reconcile_left_gets_repairs(
    of: list[InstancePod], cells: dict[str, list[InstanceReport]] | None, repair: list[object]
) -> None:
    assert list(repair_actions(observation(*of, cells=cells))) == repair


@pytest.mark.parametrize(
    ("started", "cells", "expected"),
    [
        (True, None, (True, True)),
        (False, None, (False, False)),
        (True, {"cell-0": []}, (False, True)),
        (False, {"cell-0": []}, (False, False)),
    ],
)
def test_outdated_instance_that_misses_a_probe_stays_without_a_head_and_with_a_new_one(
    started: bool, cells: dict[str, list[InstanceReport]] | None, expected: tuple[bool, bool]
) -> None:
    """A rollout also replaces the head, and the machine may be busy."""
    found = member(observation(pod(ready=False, started=started, revision="old"), cells=cells))
    assert (found.joined, found.stays) == expected
