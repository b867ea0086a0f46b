"""Requests of an adapter go, among equal instances, to the one that had it last."""

from dataclasses import replace

import msgspec
import pytest
from support.instance_views import FRESH, NOW, STATUS, hp, lp

from macroserve.core.routing.decision import RouteReason
from macroserve.core.routing.ledger import CellLedger
from macroserve.core.routing.route import route
from macroserve.core.status import InstanceView, Pool
from macroserve.core.strategies import STRATEGIES, strategy

BY_LOAD = sorted(name for name in STRATEGIES if not STRATEGIES[name].takes_turns)
LATE = {"waiting_prefill_s": 5.0, "phase_prefill_s": 5.0}


def routed(
    name: str, views: list[InstanceView], had_adapter_s: dict[str, float]
) -> tuple[str | None, RouteReason]:
    decision = route(strategy(name), views, None, FRESH, NOW, had_adapter_s)
    return decision.instance, decision.reason


@pytest.mark.parametrize("name", BY_LOAD)
@pytest.mark.parametrize(
    ("views", "had_adapter_s", "chosen"),
    [
        ([lp("a"), lp("b"), lp("c")], {"b": 1.0, "c": 2.0}, "c"),
        ([lp("a"), lp("b"), lp("c")], {"b": 2.0, "c": 1.0}, "b"),
        ([lp("a"), lp("b")], {"gone": 1.0}, "a"),
        # Not where more requests are, nor where the first token would be late.
        ([lp("a"), lp("b", num_running=1)], {"b": 1.0}, "a"),
        ([lp("a"), lp("b", **LATE)], {"b": 1.0}, "a"),
        # Few tokens more are nothing beside an adapter.
        ([lp("a", num_running=2), lp("b", num_running=2, remaining_tokens=9)], {"b": 1.0}, "b"),
    ],
)
def test_route_by_load_chooses_the_equal_instance_that_had_the_adapter_last(
    name: str, views: list[InstanceView], had_adapter_s: dict[str, float], chosen: str
) -> None:
    assert routed(name, views, had_adapter_s) == (chosen, RouteReason.LEAST_LOAD)


def test_route_by_load_keeps_to_the_pool_that_the_strategy_chose() -> None:
    views = [lp("a", num_running=40), hp("b", num_running=40)]
    assert routed("unified", views, {"b": 1.0}) == ("a", RouteReason.LEAST_LOAD)


@pytest.mark.parametrize("name", sorted(STRATEGIES.keys() - set(BY_LOAD)))
def test_route_in_turn_goes_by_turns_whatever_adapters_instances_had(name: str) -> None:
    assert routed(name, [lp("a"), lp("b")], {"b": 1.0})[0] == "a"


def assigned(ledger: CellLedger, request_id: str, adapter: str | None, now: float) -> str | None:
    request = replace(FRESH.request, request_id=request_id, adapter=adapter)
    decision = ledger.assign(replace(FRESH, request=request), now)
    ledger.settle(request_id)  # so that all instances are equal again
    return decision.instance


def test_ledger_sends_an_adapter_where_it_was_until_that_instance_leaves() -> None:
    ledger = CellLedger(strategy("vllm"))
    for name in "ab":
        ledger.add(name, Pool.LP, max_num_seqs=64)
        ledger.observe(name, STATUS, now=0.0)
    busy = msgspec.structs.replace(STATUS, seq=2, num_running=1)
    ledger.observe("a", busy, now=1.0)
    assert assigned(ledger, "r1", "sql", 2.0) == "b"
    ledger.observe("a", msgspec.structs.replace(STATUS, seq=3), now=3.0)
    assert assigned(ledger, "r2", None, 4.0) == "a"
    assert assigned(ledger, "r3", "other", 5.0) == "a"
    assert assigned(ledger, "r4", "sql", 6.0) == "b"
    ledger.remove("b")
    ledger.add("b", Pool.LP, max_num_seqs=64)
    ledger.observe("b", STATUS, now=7.0)
    assert assigned(ledger, "r5", "sql", 8.0) == "a"
