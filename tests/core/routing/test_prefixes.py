"""Requests go where the beginning of their prompt is cached, while that is in time and worth it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.instance_views import FRESH, NOW, STATUS, hp, lp

from macroserve.api.messages import PREFIX_KEY_BYTES
from macroserve.core.routing.constraints import Check, Demand, check, first_token_s, wait_s
from macroserve.core.routing.decision import RouteReason
from macroserve.core.routing.ledger import CellLedger
from macroserve.core.routing.prefixes import (
    BOUNDARIES,
    MEMORY_TOKENS,
    REPLICA_COST,
    HeldKey,
    PrefixRecord,
    num_keys,
)
from macroserve.core.routing.route import route
from macroserve.core.status import InstanceView, Pool
from macroserve.core.strategies import STRATEGIES, strategy

BY_LOAD = sorted(STRATEGIES.keys() - {"ecoserve", "ascendra"})
SAVED = 448
"""Tokens of FRESH's 512 that are cached: 0.4375 of its half a second of prefill."""
LATE = {"waiting_prefill_s": 5.0, "phase_prefill_s": 5.0}


def queue(seconds: float, num_waiting: int = 1) -> dict[str, object]:
    return {
        "waiting_prefill_s": seconds,
        "phase_prefill_s": seconds,
        "num_waiting": num_waiting,
    }


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [(1, 0), (64, 0), (65, 1), (512, 7), (513, 8), (640, 8), (641, 9), (200_000, len(BOUNDARIES))],
)
def test_prompt_has_keys_of_the_beginnings_before_its_last_token(
    num_tokens: int, expected: int
) -> None:
    assert num_keys(num_tokens) == expected


def test_boundaries_are_near_in_proportion_and_whole_blocks() -> None:
    assert all(boundary % 64 == 0 for boundary in BOUNDARIES)
    assert all(after / before <= 5 / 4 for before, after in pairwise(BOUNDARIES) if before >= 512)
    assert BOUNDARIES[-1] > 128_000 and len(BOUNDARIES) * PREFIX_KEY_BYTES <= 384


# -- the record


def keys(*beginnings: int) -> tuple[int, ...]:
    return beginnings


def note(record: PrefixRecord, name: str, prompt: tuple[int, ...], capacity: int) -> None:
    """Note a prompt that ends with the last of its keys' boundaries, and find what was expected."""
    num_tokens = BOUNDARIES[len(prompt) - 1] + 1 if prompt else 1
    record.observe(name, 0, 0)
    found = record.expected(prompt).get(name, 0)
    record.note(name, prompt, num_tokens, capacity)
    record.observe(name, num_tokens, found)


def test_instance_is_expected_to_have_the_longest_beginning_that_it_got() -> None:
    record = PrefixRecord()
    note(record, "a", keys(1, 2, 3), 10_000)
    note(record, "b", keys(1, 9), 10_000)
    assert record.expected(keys(1, 2, 4, 5)) == {"a": 128, "b": 64}
    assert record.expected(keys(1, 2, 3)) == {"a": 192, "b": 64}
    assert record.expected(keys(7, 8)) == {}
    assert record.expected(()) == {}


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [(384, {1: 192, 7: 192}), (320, {1: 128, 7: 192}), (256, {1: 64, 7: 192}), (192, {7: 192})],
)
def test_full_instance_loses_the_prompt_used_least_recently_and_its_end_first(
    capacity: int, expected: dict[int, int]
) -> None:
    record = PrefixRecord()
    note(record, "a", keys(1, 2, 3), capacity)
    note(record, "a", keys(7, 8, 9), capacity)
    found = {first: record.expected(keys(first, first + 1, first + 2)) for first in (1, 7)}
    assert found == {first: {"a": expected[first]} if first in expected else {} for first in (1, 7)}


def test_prompt_used_again_stays_longer_than_a_newer_one() -> None:
    record = PrefixRecord()
    for first in (1, 7, 1, 4):
        note(record, "a", keys(first, first + 1), 256)
    assert record.expected(keys(1, 2)) == {"a": 128}
    assert record.expected(keys(7, 8)) == {}


def test_forgotten_instance_has_nothing() -> None:
    record = PrefixRecord()
    note(record, "a", keys(1), 1000)
    record.forget("a")
    assert record.expected(keys(1)) == {}


def test_instance_that_comes_after_another_has_left_is_taken_for_none_of_the_others() -> None:
    record = PrefixRecord()
    note(record, "a", keys(1), 1000)
    note(record, "b", keys(1, 2), 1000)
    record.forget("a")
    for name in ("c", "d"):
        note(record, name, keys(7), 1000)
    assert record.expected(keys(1, 2)) == {"b": 128}
    assert record.expected(keys(7)) == {"c": 64, "d": 64}


@pytest.mark.parametrize(("found_share", "expected_share"), [(1.0, 1.0), (0.5, 0.5), (0.0, 0.0)])
def test_expectation_follows_what_the_instance_says_it_has_found(
    found_share: float, expected_share: float
) -> None:
    """An instance whose cache is off, or that others fill as well, finds less than it got."""
    record = PrefixRecord()
    prompt = tuple(range(num_keys(4097)))
    num_long = 4096
    num_begun = num_found = 0
    for number in range(100):
        record.note("a", prompt, num_long + 1, capacity=100_000)
        record.observe("a", num_begun, num_found)
        num_found += int(found_share * num_long) if number else 0
        num_begun = (number + 1) * (num_long + 1)
    assert record.expected(prompt)["a"] == pytest.approx(expected_share * num_long, abs=90)


def test_prompts_under_way_do_not_shake_the_expectation() -> None:
    record = PrefixRecord()
    prompt = tuple(range(num_keys(4097)))
    for _ in range(20):
        record.note("a", prompt, 4097, capacity=100_000)
    assert record.expected(prompt)["a"] >= 0.9 * 4096


def test_record_of_prompts_that_never_repeat_goes_on_and_trusts_the_next_ones() -> None:
    record = PrefixRecord()
    for _ in range(2500):  # Shares of nothing get too small for a float.
        record.note("a", (), MEMORY_TOKENS, capacity=100_000)
    record.note("a", keys(1, 2), 200, capacity=100_000)
    assert record.expected(keys(1, 2)) == {"a": 128}


@pytest.mark.parametrize(
    "counts",
    [
        [(1_000_000, 0), (0, 0), (1000, 900)],
        [(1_000_000, 900_000), (0, 0), (1000, 900)],
        [(1_000_000, 900_000), (1_001_000, 0)],
    ],
)
def test_counts_that_fell_began_anew_and_do_not_shake_the_expectation(
    counts: Sequence[tuple[int, int]],
) -> None:
    record = PrefixRecord()
    record.note("a", keys(1, 2), 129, 1000)
    for prompt_tokens, cached_tokens in counts:
        record.observe("a", prompt_tokens, cached_tokens)
    assert record.expected(keys(1, 2)) == {"a": 128}


# -- to another record


def moved(record: PrefixRecord, name: str) -> PrefixRecord:
    """Return another record that an instance comes to with what it has."""
    other = PrefixRecord()
    other.take_over(name, record.held(name))
    return other


def test_record_that_takes_an_instance_over_expects_the_same_of_it() -> None:
    record = PrefixRecord()
    note(record, "a", tuple(range(20)), 10_000)
    note(record, "b", keys(77, 78), 10_000)
    other = moved(record, "a")
    assert other.expected(tuple(range(20))) == {"a": BOUNDARIES[19]}
    assert other.expected(tuple(range(9))) == {"a": BOUNDARIES[8]}
    assert other.expected(keys(77, 78)) == {}


@pytest.mark.parametrize(("used_again", "expected"), [(1, {"a": 128}), (7, {})])
def test_record_that_takes_an_instance_over_knows_what_it_loses_first(
    used_again: int, expected: dict[str, int]
) -> None:
    record = PrefixRecord()
    for first in (1, 7, used_again):
        note(record, "a", keys(first, first + 1), 256)
    other = moved(record, "a")
    note(other, "a", keys(4, 5), 256)
    assert other.expected(keys(1, 2)) == expected


def test_instance_that_gave_beginnings_away_has_the_others_and_room_for_more() -> None:
    record = PrefixRecord()
    for first in (7, 1):
        note(record, "a", keys(first, first + 1), 256)
    record.give_away("a", [HeldKey(1, 64), HeldKey(2, 64), HeldKey(9, 64)])
    record.give_away("b", [HeldKey(7, 64)])
    note(record, "a", keys(4, 5), 256)
    assert record.expected(keys(1, 2)) == {}
    assert record.expected(keys(7, 8)) == record.expected(keys(4, 5)) == {"a": 128}


def test_instance_without_a_prompt_has_nothing_to_take_over() -> None:
    assert moved(PrefixRecord(), "a").expected(keys(1)) == {}


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=20)),
    st.integers(0, 4000),
    st.lists(st.integers(0, 3), max_size=20),
)
def test_record_that_takes_an_instance_over_is_the_same_as_before(
    prompts: Sequence[list[int]], capacity: int, asked: list[int]
) -> None:
    def chain(ids: list[int]) -> tuple[int, ...]:
        return tuple(hash(tuple(ids[: end + 1])) for end in range(len(ids)))

    record = PrefixRecord()
    for ids in prompts:
        note(record, "a", chain(ids), capacity)
    other = moved(record, "a")
    assert other.held("a") == record.held("a") or not prompts
    assert sum(num_tokens for _, num_tokens in other.held("a")) <= capacity
    assert other.expected(chain(asked)) == record.expected(chain(asked))


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 9), max_size=6))),
    st.integers(0, 800),
)
def test_record_never_expects_more_than_an_instance_holds(
    prompts: Sequence[tuple[str, list[int]]], capacity: int
) -> None:
    record = PrefixRecord()
    for name, ids in prompts:
        chain = tuple(hash(tuple(ids[: end + 1])) for end in range(len(ids)))
        note(record, name, chain, capacity)
        expected = record.expected(chain)
        assert all(0 < num_tokens <= capacity for num_tokens in expected.values())
        if chain and BOUNDARIES[len(chain) - 1] <= capacity:
            assert expected[name] == BOUNDARIES[len(chain) - 1]


# -- the choice


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
        # Of equally warm ones the one with fewer requests.
        ([lp("a"), lp("b", **queue(0.5, 2)), lp("c", **queue(0.5))], {"b": SAVED, "c": SAVED}, "c"),
        # One that would be late is passed over, unless the chosen one would be, too.
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


@pytest.mark.parametrize("name", ["ecoserve", "ascendra"])
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
