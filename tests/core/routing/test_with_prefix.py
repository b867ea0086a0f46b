"""Requests go where a prefix of their prompt is cached, if that is in time and worth it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec
import pytest
from support.instance_views import FRESH, NOW, STATUS, hp, lp

from macroserve.core.routing.constraints import Check, Demand, check, first_token_s, wait_s
from macroserve.core.routing.decision import RouteReason
from macroserve.core.routing.ledger import CellLedger
from macroserve.core.routing.prefixes import (
    REPLICA_COST,
    num_keys,
)
from macroserve.core.routing.route import route
from macroserve.core.status import InstanceView, Pool
from macroserve.core.strategies import STRATEGIES, strategy

BY_LOAD = sorted(name for name in STRATEGIES if not STRATEGIES[name].takes_turns)
SAVED = 448
"""Tokens of FRESH's 512 that are cached: 0.4375 of its half a second of prefill."""
LATE = {"waiting_prefill_s": 5.0, "phase_prefill_s": 5.0}


def queue(seconds: float, num_waiting: int = 1) -> dict[str, object]:
    return {
        "waiting_prefill_s": seconds,
        "phase_prefill_s": seconds,
        "num_waiting": num_waiting,
    }


def chosen(name: str, views: Sequence[InstanceView], cached: Mapping[str, int]) -> str | None:
    decision = route(strategy(name), views, None, FRESH, NOW, cached=cached)
    assert decision.num_cached == cached.get(decision.instance or "", 0)
    return decision.instance


@pytest.mark.parametrize("name", BY_LOAD)
@pytest.mark.parametrize(
    ("views", "cached", "expected"),
    [
        ([lp("a"), lp("b")], {"b": SAVED}, "b"),
        ([lp("a"), lp("b"), lp("c")], {"b": 64, "c": SAVED}, "c"),
        ([lp("a"), lp("b")], {"gone": SAVED}, "a"),
        # A wait of up to twice the prefill that it saves, beyond what is saved itself,
        ([lp("a"), lp("b", **queue(1.25))], {"b": SAVED}, "b"),
        ([lp("a"), lp("b", **queue(1.375))], {"b": SAVED}, "a"),
        ([lp("a"), lp("b", **queue(0.25))], {"b": 64}, "a"),
        ([lp("a"), lp("b", **queue(0.125))], {"b": 64}, "b"),
        # and of as much again for each request that would wait for a copy, too.
        ([lp("a", **queue(0.125)), lp("b", **queue(0.375))], {"b": 64}, "b"),
        ([lp("a", **queue(0.125)), lp("b", **queue(0.5))], {"b": 64}, "a"),
        ([lp("a", **queue(0.125, 2)), lp("b", **queue(0.5, 2))], {"b": 64}, "b"),
        ([lp("a", in_flight=1), lp("b", **queue(0.25, 2))], {"b": 64}, "b"),
        ([lp("a", in_flight=1), lp("b", **queue(0.375, 2))], {"b": 64}, "a"),
        # Of equal prefixes, the instance with fewer requests.
        ([lp("a"), lp("b", **queue(0.5, 2)), lp("c", **queue(0.5))], {"b": SAVED, "c": SAVED}, "c"),
        # A late instance is skipped, unless the chosen one would also be late.
        ([lp("a"), lp("b", **LATE)], {"b": SAVED}, "a"),
        ([lp("a", **LATE), lp("b", **LATE)], {"b": SAVED}, "b"),
        ([lp("a", **queue(1.25)), lp("b", **queue(1.875))], {"b": SAVED}, "b"),
        ([lp("a", **queue(1.25)), lp("b", **queue(2.0))], {"b": SAVED}, "a"),
        ([lp("a", **queue(1.75)), lp("b", **queue(3.9))], {"b": SAVED}, "b"),
        ([lp("a", **queue(1.75)), lp("b", **queue(4.0))], {"b": SAVED}, "a"),
    ],
)
def test_route_by_load_goes_to_the_warm_instance_in_time_and_for_a_worthy_wait(
    name: str, views: list[InstanceView], cached: dict[str, int], expected: str
) -> None:
    assert chosen(name, views, cached) == expected


def test_route_by_load_keeps_to_the_pool_that_the_strategy_chose() -> None:
    views = [lp("a"), hp("b", num_running=40)]
    assert chosen("unified", views, {"b": SAVED}) == "a"


@pytest.mark.parametrize("name", sorted(STRATEGIES.keys() - set(BY_LOAD)))
def test_route_in_turn_goes_by_turns_whatever_instances_have(name: str) -> None:
    assert chosen(name, [lp("a"), lp("b")], {"b": SAVED}) == "a"


def test_instance_in_turn_is_in_time_with_the_prefix_alone() -> None:
    views = [lp("a", **queue(1.75)), lp("b", **queue(1.9))]
    decision = route(strategy("ecoserve"), views, None, FRESH, NOW, cached={"b": SAVED})
    assert (decision.instance, decision.reason) == ("b", RouteReason.SATISFIES)


def test_cached_tokens_take_no_time() -> None:
    demand = Demand.of(FRESH, by_mean=False, now=NOW, cached={"a": SAVED})
    warm, cold = lp("a", **queue(1.75)), lp("b", **queue(1.75))
    assert (wait_s(warm, demand), wait_s(cold, demand)) == (1.8125, 2.25)
    assert (check(warm, demand), check(cold, demand)) == (Check.SATISFIED, Check.TTFT)
    decoding = lp("a", **queue(1.75), decode_step_s=0.05)
    assert first_token_s(decoding, demand) == 2 * 1.8125


# -- in the ledger

PROMPT = tuple(range(num_keys(FRESH.request.num_prompt_tokens)))


def ledger_of(*names: str) -> CellLedger:
    ledger = CellLedger(strategy("unified"))
    for name in names:
        ledger.add(name, Pool.LP, max_num_seqs=64)
        ledger.observe(name, STATUS, now=NOW)
    return ledger


def assign(ledger: CellLedger, request_id: str) -> tuple[str | None, int]:
    request = replace(FRESH.request, request_id=request_id)
    decision = ledger.assign(replace(FRESH, request=request, prefix=PROMPT), NOW)
    return decision.instance, decision.num_cached


def test_second_request_follows_the_first_and_counts_what_is_left_to_compute() -> None:
    ledger = ledger_of("a", "b")
    assert assign(ledger, "first") == ("a", 0)
    assert assign(ledger, "second") == ("a", SAVED)
    (view, _) = ledger.views
    assert view.in_flight_prefill_s == (512 + 64) * STATUS.prefill_s_per_token
    assert view.in_flight_tokens == 2 * 640
    ledger.settle("second")
    assert view.name == "a" and ledger.views[0].in_flight_prefill_s == 0.5


def test_trial_counts_what_is_left_to_compute() -> None:
    ledger = ledger_of("a")
    assign(ledger, "first")
    ledger.settle("first")
    ledger.assign(replace(FRESH, prefix=PROMPT, trial=True), NOW)
    assert ledger.views[0].in_flight_prefill_s == 64 * STATUS.prefill_s_per_token


def test_request_that_a_cell_leaves_to_others_leaves_no_trace() -> None:
    ledger = ledger_of("a")
    ledger.observe("a", msgspec.structs.replace(STATUS, seq=2, **LATE), NOW)
    left = ledger.assign(replace(FRESH, prefix=PROMPT), NOW, ignore_constraints=False)
    assert left.instance is None and not left.satisfied
    assert ledger.views[0].in_flight_requests == 0
    assert assign(ledger, "second") == ("a", 0)


def test_instance_that_finds_nothing_is_expected_to_have_less_and_less() -> None:
    ledger = ledger_of("a")
    expected = []
    for number in range(100):
        expected.append(assign(ledger, f"request-{number}")[1])
        begun = {"prompt_tokens": 512 * (number + 1), "admitted": (f"request-{number}",)}
        ledger.observe("a", msgspec.structs.replace(STATUS, seq=number + 2, **begun), NOW)
    assert expected[1] > 0.9 * SAVED and expected[-1] < 0.2 * SAVED


@pytest.mark.parametrize("restarts", [True, False])
def test_instance_that_left_or_restarted_has_nothing(restarts: bool) -> None:
    ledger = ledger_of("a")
    assign(ledger, "first")
    if not restarts:
        ledger.remove("a")
    ledger.add("a", Pool.LP, max_num_seqs=64, incarnation=1)
    ledger.observe("a", STATUS, NOW, incarnation=1)
    assert assign(ledger, "second") == ("a", 0)


@pytest.mark.parametrize(
    ("leave", "expected"),
    [
        (lambda ledger: ledger.remove("a"), (SAVED, 0)),
        (lambda ledger: ledger.add("a", Pool.LP, 64, incarnation=1), (SAVED, 0)),
        (lambda ledger: ledger.release("a"), (0, SAVED)),
        (lambda ledger: ledger.add("a", Pool.HP, 64), (0, 0)),
        (lambda ledger: ledger.remove("b"), (0, 0)),
    ],
)
def test_cell_counts_what_the_caches_had_of_instances_that_are_gone(
    leave: Callable[[CellLedger], object], expected: tuple[int, int]
) -> None:
    ledger = ledger_of("a", "b")
    assign(ledger, "first")
    leave(ledger)
    view = ledger.cell_view("cell-0")
    assert (view.lost_tokens, view.moved_tokens) == expected


def test_cell_counts_only_what_it_expected_of_an_instance_that_is_gone() -> None:
    ledger = ledger_of("a")
    for number in range(100):
        assign(ledger, f"request-{number}")
        begun = {"prompt_tokens": 512 * (number + 1), "admitted": (f"request-{number}",)}
        ledger.observe("a", msgspec.structs.replace(STATUS, seq=number + 2, **begun), NOW)
    ledger.remove("a")
    assert ledger.cell_view("cell-0").lost_tokens < 0.2 * SAVED


@pytest.mark.parametrize("num_requests", [10, 40, 160])
def test_popular_beginning_makes_no_instance_wait_longer_than_it_is_worth(
    num_requests: int,
) -> None:
    ledger = ledger_of("a", "b", "c", "d")
    for number in range(num_requests):
        assert assign(ledger, f"request-{number}")[0] is not None
    waits = [view.in_flight_prefill_s for view in ledger.views]
    own_s = 512 * STATUS.prefill_s_per_token
    assert max(waits) - min(waits) <= REPLICA_COST * SAVED * STATUS.prefill_s_per_token + own_s
