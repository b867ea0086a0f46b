"""Requests of a session go to the instance of the last one, if they are in time there."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.instance_views import FRESH, NOW, STATUS, hp, lp

from macroserve.core.routing import sessions
from macroserve.core.routing.decision import RouteReason
from macroserve.core.routing.ledger import CellLedger
from macroserve.core.routing.route import route
from macroserve.core.routing.sessions import SessionRecord
from macroserve.core.status import InstanceView, Pool
from macroserve.core.strategies import STRATEGIES, strategy

BY_LOAD = sorted(name for name in STRATEGIES if not STRATEGIES[name].takes_turns)
LATE = {"waiting_prefill_s": 5.0, "phase_prefill_s": 5.0}
LATER = {"waiting_prefill_s": 6.0, "phase_prefill_s": 6.0}


def routed(
    name: str,
    views: list[InstanceView],
    holder: str | None,
    cached: dict[str, int] | None = None,
) -> tuple[str | None, RouteReason]:
    decision = route(
        strategy(name), views, None, FRESH, NOW, cached=cached or {}, session_holder=holder
    )
    return decision.instance, decision.reason


@pytest.mark.parametrize("name", BY_LOAD)
@pytest.mark.parametrize(
    ("views", "holder", "cached", "chosen"),
    [
        ([lp("a"), lp("b")], None, {}, "a"),
        ([lp("a"), lp("b")], "b", {}, "b"),
        ([lp("a"), lp("b")], "gone", {}, "a"),
        # More requests do not matter where the first token is in time.
        ([lp("a"), lp("b", num_running=9)], "b", {}, "b"),
        ([lp("a"), lp("b", **LATE)], "b", {}, "a"),
        ([lp("a", **LATER), lp("b", **LATE)], "b", {}, "b"),
        # The session has precedence over shared prefixes.
        ([lp("a"), lp("b"), lp("c")], "b", {"c": 448}, "b"),
        ([lp("a"), lp("b", **LATE), lp("c")], "b", {"c": 448}, "c"),
    ],
)
def test_route_by_load_chooses_the_instance_of_the_session_while_it_is_in_time(
    name: str,
    views: list[InstanceView],
    holder: str | None,
    cached: dict[str, int],
    chosen: str,
) -> None:
    assert routed(name, views, holder, cached) == (chosen, RouteReason.LEAST_LOAD)


def test_route_of_a_session_keeps_to_the_pool_that_the_strategy_chose() -> None:
    views = [lp("a", num_running=40), hp("b", num_running=40)]
    assert routed("unified", views, "b") == ("a", RouteReason.LEAST_LOAD)


@pytest.mark.parametrize("name", sorted(STRATEGIES.keys() - set(BY_LOAD)))
def test_route_in_turn_goes_by_turns_whatever_the_session(name: str) -> None:
    assert routed(name, [lp("a"), lp("b")], "b")[0] == "a"


def assigned(ledger: CellLedger, request_id: str, session: int | None) -> str | None:
    request = replace(FRESH.request, request_id=request_id)
    return ledger.assign(replace(FRESH, request=request, session=session), NOW).instance


def test_ledger_sends_a_session_where_it_was_and_others_by_load() -> None:
    ledger = CellLedger(strategy("unified"))
    for name in "ab":
        ledger.add(name, Pool.LP, max_num_seqs=64)
        ledger.observe(name, STATUS, now=NOW)
    ledger.observe("a", msgspec.structs.replace(STATUS, seq=2, num_running=1), now=NOW)
    assert assigned(ledger, "r1", session=7) == "b"
    # The second request in flight makes "a" the least loaded.
    assert assigned(ledger, "r2", session=7) == "b"
    assert assigned(ledger, "r3", session=8) == assigned(ledger, "r4", session=None) == "a"
    assert assigned(ledger, "r5", session=7) == "b"


def test_session_follows_a_request_that_had_to_go_elsewhere() -> None:
    record = SessionRecord()
    record.note(7, "a")
    record.note(7, "b")
    assert record.holder(7) == "b"


@given(st.lists(st.tuples(st.integers(0, 5) | st.none(), st.sampled_from("abc")), max_size=40))
def test_record_has_the_last_holders_of_the_sessions_used_last(
    notes: list[tuple[int | None, str]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "MAX_SESSIONS", 3)
        record = SessionRecord()
        for session, holder in notes:
            record.note(session, holder)
    expected: dict[int, str] = {}
    for session, holder in reversed(notes):
        if session is not None and session not in expected and len(expected) < 3:
            expected[session] = holder
    assert {s: record.holder(s) for s in range(6) if record.holder(s)} == expected
    assert record.holder(None) is None
