"""The next actions of a fleet follow from each decision."""

from dataclasses import replace
from typing import Any

import pytest

from macroserve.core.scaling.fleet import (
    Action,
    Attach,
    DeleteCell,
    DeployCell,
    DesiredFleet,
    Drain,
    Fleet,
    FleetPlan,
    Member,
    MemberState,
    Migrate,
    Relabel,
    Start,
    Stop,
    plan_actions,
)
from macroserve.core.scaling.mitosis import Bounds
from macroserve.core.status import Pool

LP, HP = Pool.LP, Pool.HP
ONE_CELL, TWO_CELLS = frozenset({"cell-0"}), frozenset({"cell-0", "cell-1"})
UNKNOWN = None


def member(name: str, cell: str = "cell-0", **more: Any) -> Member:
    """Return an instance that serves in its cell, with changes."""
    given: dict[str, Any] = {"state": MemberState.SERVING, "pool": LP, "joined": True, **more}
    return Member(name=name, cell=cell, **given)


def starting(name: str, cell: str = "cell-0", **more: Any) -> Member:
    return member(name, cell, **{"state": MemberState.STARTING, "joined": False, **more})


def planned(
    members: list[Member],
    instances: int,
    cells: frozenset[str] | None = ONE_CELL,
    ratio: float = 0.0,
    outdated_ingresses: bool = False,
) -> FleetPlan:
    fleet = Fleet(tuple(members), cells, outdated_ingresses)
    return plan_actions(fleet, DesiredFleet(instances, Bounds(2, 4), ratio))


def plain(actions: tuple[Action, ...]) -> list[Action]:
    """Return the actions without their reasons."""
    return [replace(s, reason="") if isinstance(s, Drain | Stop) else s for s in actions]


LEFT = member("left", state=MemberState.LEAVING, draining=True, drained=True)
A, B, C, D, E = (member(name) for name in "abcde")
UNREACHABLE = starting("a", outdated=True, started=True)

DECISIONS: dict[str, tuple[list[Member], dict[str, Any], list[Action]]] = {
    "from nothing, instances start while their cell does": (
        [],
        {"instances": 2, "cells": frozenset(), "ratio": 0.5},
        [
            Start("instance-0", "cell-0", LP),
            Start("instance-1", "cell-0", HP),
            DeployCell("cell-0"),
        ],
    ),
    "they start also while no cell can be asked": (
        [A],
        {"instances": 2, "cells": UNKNOWN},
        [Start("instance-0", "cell-0", LP)],
    ),
    "nothing to do": ([A, B], {"instances": 2}, []),
    "nothing but to wait": (
        [A, starting("b"), member("c", draining=True), LEFT],
        {"instances": 2},
        [],
    ),
    "what serves joins the cell that it is meant for": (
        [A, member("b", joined=False)],
        {"instances": 2},
        [Attach("b", "cell-0")],
    ),
    "its scheduler comes first": (
        [member("a", joined=False), member("b", joined=False)],
        {"instances": 2, "cells": frozenset()},
        [DeployCell("cell-0"), Attach("a", "cell-0"), Attach("b", "cell-0")],
    ),
    "what is yet to join may go elsewhere": (
        [A, B, starting("c", "cell-3"), member("d", "cell-3", joined=False)],
        {"instances": 4},
        [Relabel("c", "cell-0", LP), Relabel("d", "cell-0", LP), Attach("d", "cell-0")],
    ),
    "a cell that has outgrown its bound divides": (
        [A, B, C, D, E],
        {"instances": 5},
        [DeployCell("cell-1"), Migrate("a", "cell-1", LP), Migrate("b", "cell-1", LP)],
    ),
    "it keeps its lower bound of those that serve, while others have yet to start": (
        [A, B, C],
        {"instances": 5},
        [
            Start("instance-1", "cell-0", LP),
            Start("instance-0", "cell-1", LP),
            DeployCell("cell-1"),
            Migrate("a", "cell-1", LP),
        ],
    ),
    "with no more than these, it keeps them all": (
        [A, B, starting("c"), starting("d"), starting("e")],
        {"instances": 5},
        [DeployCell("cell-1"), Relabel("c", "cell-1", LP), Relabel("d", "cell-1", LP)],
    ),
    "two that fit into one become one": (
        [A, B, member("c", "cell-1"), member("d", "cell-1")],
        {"instances": 4, "cells": TWO_CELLS},
        [
            Migrate("c", "cell-0", LP),
            Migrate("d", "cell-0", LP),
            DeleteCell("cell-1"),
        ],
    ),
    "a scheduler without members ends": (
        [A, B],
        {"instances": 2, "cells": TWO_CELLS},
        [DeleteCell("cell-1")],
    ),
    "but not while an instance drains in its cell": (
        [A, B, member("c", "cell-1", draining=True)],
        {"instances": 2, "cells": TWO_CELLS},
        [],
    ),
    "nor in the round that has it drain": (
        [A, B, member("c", "cell-1")],
        {"instances": 2, "cells": TWO_CELLS},
        [Drain("c", "cell-1", "")],
    ),
    "pools change where they are": (
        [A, B, C],
        {"instances": 3, "ratio": 0.33},
        [Migrate("a", "cell-0", HP)],
    ),
    "the one with the least work drains": (
        [replace(A, remaining_tokens=5), B, replace(C, remaining_tokens=9)],
        {"instances": 2},
        [Drain("b", "cell-0", "")],
    ),
    "drained, it stops": (
        [A, B, member("c", draining=True, drained=True)],
        {"instances": 2},
        [Stop("c", "")],
    ),
    "also when it is not ready any more": (
        [A, B, starting("c", joined=True, draining=True, drained=True)],
        {"instances": 2},
        [Stop("c", "")],
    ),
    "but not before it has drained": (
        [A, B, starting("c", joined=True, draining=True)],
        {"instances": 2},
        [],
    ),
    "what does not serve yet is the first to go, at once": (
        [starting("a"), B, C],
        {"instances": 2},
        [Stop("a", "")],
    ),
    "what no cell holds needs no drain": (
        [A, B, member("c", joined=False, remaining_tokens=-1)],
        {"instances": 2},
        [Stop("c", "")],
    ),
    "what has failed makes place, and another comes": (
        [A, member("b", state=MemberState.FAILED, joined=False)],
        {"instances": 2},
        [Start("instance-0", "cell-0", LP), Stop("b", "")],
    ),
    "a name is not given out before it is free": (
        [A, member("instance-0", state=MemberState.LEAVING)],
        {"instances": 2},
        [Start("instance-1", "cell-0", LP)],
    ),
    "one is added for one that leaves": (
        [A, member("b", draining=True)],
        {"instances": 2},
        [Start("instance-0", "cell-0", LP)],
    ),
    "while no cell can be asked, what serves is left as it is": (
        [
            *(A, B, C, D, E),
            member("f", joined=False),
            member("g", joined=False, pool=HP),
            member("h", "cell-1"),
            member("i", draining=True),
        ],
        {"instances": 2, "cells": UNKNOWN, "ratio": 0.5},
        [],
    ),
    "and the rest goes on": (
        [
            A,
            member("b", draining=True, drained=True),
            member("c", state=MemberState.FAILED),
            starting("d"),
        ],
        {"instances": 1, "cells": UNKNOWN},
        [Stop("b", ""), Stop("c", ""), Stop("d", "")],
    ),
    "an outdated one makes place, one with the least work": (
        [replace(A, outdated=True, remaining_tokens=2), replace(B, outdated=True), C],
        {"instances": 3},
        [Drain("b", "cell-0", "")],
    ),
    "not while anything else is to be done": (
        [replace(A, outdated=True), B],
        {"instances": 2, "ratio": 0.5},
        [Migrate("a", "cell-0", HP)],
    ),
    "nor before its cell has it": (
        [member("a", joined=False, outdated=True), B],
        {"instances": 2},
        [Attach("a", "cell-0")],
    ),
    "one after the other": (
        [replace(A, outdated=True), member("b", outdated=True, draining=True), C],
        {"instances": 2},
        [],
    ),
    "once the new one has joined": (
        [replace(A, outdated=True), member("b", joined=False)],
        {"instances": 2},
        [Attach("b", "cell-0")],
    ),
    "and answers": (
        [replace(A, outdated=True), starting("b", joined=True)],
        {"instances": 2},
        [],
    ),
    "one that does not answer first": (
        [replace(A, outdated=True), starting("b", joined=True, outdated=True)],
        {"instances": 2},
        [Drain("b", "cell-0", "")],
    ),
    "not while it is unknown who serves": (
        [replace(A, outdated=True), replace(B, outdated=True)],
        {"instances": 2, "cells": UNKNOWN},
        [],
    ),
    "an only one waits for another": (
        [replace(A, outdated=True)],
        {"instances": 1},
        [Start("instance-0", "cell-0", LP)],
    ),
    "and goes when that serves": (
        [replace(A, outdated=True), B],
        {"instances": 1},
        [Drain("a", "cell-0", "")],
    ),
    "an outdated one that has started stays until its replacement serves": (
        [starting("a", outdated=True, started=True), starting("b")],
        {"instances": 1},
        [],
    ),
    "it goes then, without a drain, as no cell holds it": (
        [starting("a", outdated=True, started=True), B],
        {"instances": 1},
        [Stop("a", "")],
    ),
    "of outdated ones that answer no more, one goes after the other": (
        [starting("a", outdated=True, started=True), starting("b", outdated=True, started=True)],
        {"instances": 2},
        [Stop("a", "")],
    ),
    "the next goes once the replacement of the first serves": (
        [starting("b", outdated=True, started=True), starting("c")],
        {"instances": 2},
        [],
    ),
    "an outdated one that has never served goes at once": (
        [starting("a", outdated=True), starting("b")],
        {"instances": 1},
        [Stop("a", "")],
    ),
    "outdated ones go while outdated ingresses have another": (
        [replace(A, outdated=True), replace(B, outdated=True), C],
        {"instances": 3, "outdated_ingresses": True},
        [Drain("a", "cell-0", "")],
    ),
    "the last outdated one stays as long as outdated ingresses": (
        [replace(A, outdated=True), B],
        {"instances": 2, "outdated_ingresses": True},
        [],
    ),
    "even if no cell can reach it": (
        [UNREACHABLE, B],
        {"instances": 2, "outdated_ingresses": True},
        [],
    ),
    "and though it is the only one": (
        [replace(A, outdated=True), B],
        {"instances": 1, "outdated_ingresses": True},
        [],
    ),
    "but not if it has failed": (
        [member("a", outdated=True, state=MemberState.FAILED), B],
        {"instances": 2, "outdated_ingresses": True},
        [Start("instance-0", "cell-0", LP), Stop("a", "")],
    ),
    "those out of reach are replaced before others": (
        [UNREACHABLE, replace(B, outdated=True), replace(UNREACHABLE, name="c")],
        {"instances": 3},
        [Stop("a", "")],
    ),
    "when nothing else is away": (
        [UNREACHABLE, replace(UNREACHABLE, name="b"), starting("c")],
        {"instances": 3},
        [],
    ),
    "an only one out of reach waits for another": (
        [UNREACHABLE],
        {"instances": 1},
        [Start("instance-0", "cell-0", LP)],
    ),
    "an outdated one that has never served is no loss": (
        [A, starting("b", outdated=True)],
        {"instances": 2},
        [Start("instance-0", "cell-0", LP), Stop("b", "")],
    ),
}


@pytest.mark.parametrize(
    ("members", "desired", "expected"), DECISIONS.values(), ids=DECISIONS.keys()
)
def test_fleet_plan_of_a_case_has_the_listed_actions(
    members: list[Member], desired: dict[str, Any], expected: list[Action]
) -> None:
    assert plain(planned(members, **desired).actions) == expected


def test_fleet_plan_drains_and_stops_with_a_reason() -> None:
    found = planned([A, B, member("c", draining=True, drained=True)], 1).actions
    assert [action.reason for action in found if isinstance(action, Drain | Stop)] == [
        "2 instances exist, 1 are desired; b has the least work: 0 tokens.",
        "It has drained.",
    ]
