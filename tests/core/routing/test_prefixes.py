"""A record of the prefixes that its holders have cached."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.api.messages import PREFIX_KEY_BYTES
from macroserve.core.routing.prefixes import (
    BOUNDARIES,
    MEMORY_TOKENS,
    HeldKey,
    PrefixRecord,
    num_keys,
)


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
    """An instance without a cache, or with requests of others, finds less than expected."""
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


def test_expectation_forgets_what_was_found_long_ago() -> None:
    record = PrefixRecord()
    prompt = tuple(range(num_keys(4097)))
    num_begun = num_found = 0
    for share in (1, 0):
        for _ in range(3 * MEMORY_TOKENS // 4096):
            record.note("a", prompt, 4097, capacity=100_000)
            record.observe("a", num_begun, num_found)
            num_begun, num_found = num_begun + 4097, num_found + share * 4096
    assert record.expected(prompt).get("a", 0) < 0.1 * 4096


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
