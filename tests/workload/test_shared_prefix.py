"""Groups of prompts with shared prefixes."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.workload.arrivals import Arrival
from macroserve.workload.shared_prefix import SYNTAX, SharedPrefix

LLM_D = SharedPrefix(150, 5, 6000)


def applied(shared: SharedPrefix, number: int, num_own: int, seed: int = 0) -> list[Arrival]:
    drawn = (Arrival(float(index), num_own, 10) for index in range(number))
    return list(shared.applied(drawn, np.random.default_rng(seed)))


def test_spec_of_the_help_is_read() -> None:
    assert SharedPrefix.parse(SYNTAX) == LLM_D


@pytest.mark.parametrize(
    "text",
    [
        "",
        "150",
        "groups=150",
        "groups=150,prompts=,tokens=6000",
        "groups=150,prompts=5",
        "prompts=5,groups=150,tokens=6000",
        "groups=0,prompts=5,tokens=6000",
        "groups=150,prompts=0,tokens=6000",
        "groups=150,prompts=5,tokens=0",
        "groups=-1,prompts=5,tokens=6000",
        "groups=1.5,prompts=5,tokens=6000",
        "groups=150,prompts=5,tokens=6000,",
        "groups=1000000000,prompts=1000000000,tokens=1",
    ],
)
def test_spec_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        SharedPrefix.parse(text)


def test_prompts_of_a_spec_without_their_number_never_repeat() -> None:
    shared = SharedPrefix.parse("groups=2,tokens=100")
    found = [arrival.block_ids for arrival in applied(shared, 50, 80)]
    assert {group for group, _ in found} == {0, 1}
    assert len({own for _, own in found} - {0, 1}) == 50


def test_prompts_have_their_groups_beginning_and_own_tokens() -> None:
    for arrival in applied(LLM_D, 50, 1200):
        assert arrival.num_prompt_tokens == 7200
        assert arrival.block_tokens == 6000
        group, own = arrival.block_ids
        assert group < 150 and (own - 150) // 5 == group


def test_all_prompts_are_about_as_likely() -> None:
    found = Counter(arrival.block_ids for arrival in applied(SharedPrefix(3, 2, 100), 6000, 50))
    assert len(found) == 6
    assert all(900 < count < 1100 for count in found.values())


@given(
    shared=st.builds(SharedPrefix, st.integers(1, 5), st.integers(1, 5), st.integers(1, 50)),
    num_own=st.integers(1, 500),
)
def test_blocks_cover_each_prompt_and_no_more(shared: SharedPrefix, num_own: int) -> None:
    for arrival in applied(shared, 5, num_own):
        most = len(arrival.block_ids) * arrival.block_tokens
        assert most - arrival.block_tokens < arrival.num_prompt_tokens <= most
