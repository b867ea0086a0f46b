"""Simulated instances compute shared prefixes of a trace once."""

from dataclasses import replace
from typing import Any

import pytest
from support.experiment import EXPERIMENT

from macroserve.core.block_pool import BlockPool
from macroserve.core.hybrid_cache import keeping_hidden
from macroserve.core.routing.prefixes import BOUNDARIES, num_keys
from macroserve.core.strategies import STRATEGIES
from macroserve.sim import simulation
from macroserve.sim.prefixes import block_hashes, block_spans, prefix_keys
from macroserve.sim.results import AT_END, RunResult
from macroserve.sim.scenario import Scenario
from macroserve.workload.arrivals import Arrival

SCENARIO = EXPERIMENT.scenario
PROMPT_TOKENS = 2000
SHARED, OWN = (1, 2, 3), 100


def arrivals(num_shared: int, rate: float = 4.0, number: int = 60) -> list[Arrival]:
    """Return arrivals whose prompts begin with the same ``num_shared`` blocks of the trace."""
    return [
        Arrival(
            index / rate,
            PROMPT_TOKENS,
            20,
            block_ids=(*SHARED[:num_shared], *range(OWN + 9 * index, OWN + 9 * index + 4)),
        )
        for index in range(number)
    ]


def served(arrivals: list[Arrival], strategy: str = "unified", **fields: Any) -> RunResult:
    shares = keeping_hidden(STRATEGIES[strategy], on=False)
    changed = Scenario(SCENARIO.cluster, shares, SCENARIO.slo, **fields)
    return changed.serve(arrivals, stop=AT_END, seed=1)


def mean_ttft_s(result: RunResult) -> float:
    return sum(each.wait_s for each in result.results) / len(result.results)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_shared_prompts_begin_sooner_and_all_requests_end(strategy: str) -> None:
    alone, shared = served(arrivals(0), strategy), served(arrivals(3), strategy)
    assert alone.requests == shared.requests == 60
    assert not any(result.refused for result in (*alone.results, *shared.results))
    assert mean_ttft_s(shared) < 0.7 * mean_ttft_s(alone)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_response_of_one_token_ends_with_what_it_shares_still_held(strategy: str) -> None:
    """The first request goes on decoding while others find its prompt, and end at once."""
    some = arrivals(3, rate=20.0)
    mixed = [each._replace(num_output_tokens=1 + 300 * (i % 5 == 0)) for i, each in enumerate(some)]
    assert served(mixed, strategy).requests == 60


def test_run_tells_the_share_of_prompt_tokens_that_the_caches_had() -> None:
    assert served(arrivals(0)).prefix_cache_hit_ratio == 0
    # All but the first prompts at each instance find three blocks of four.
    assert 0.6 < served(arrivals(3)).prefix_cache_hit_ratio < 3 * 512 / PROMPT_TOKENS


def test_instances_without_prefix_caching_share_nothing() -> None:
    assert served(arrivals(3), prefix_caching=False).prefix_cache_hit_ratio == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_instances_that_keep_hidden_states_share_nothing(strategy: str) -> None:
    hidden = keeping_hidden(STRATEGIES[strategy], on=True)
    found = replace(SCENARIO, strategy=hidden).serve(arrivals(3, number=20), stop=AT_END)
    assert found.prefix_cache_hit_ratio == 0


def test_same_seed_gives_the_same_results() -> None:
    assert served(arrivals(2)) == served(arrivals(2))


def test_prompts_that_share_nothing_take_as_long_as_without_a_cache() -> None:
    without = [arrival._replace(block_ids=()) for arrival in arrivals(0)]
    assert mean_ttft_s(served(arrivals(0))) == pytest.approx(mean_ttft_s(served(without)))


@pytest.mark.parametrize(
    ("num_tokens", "block_ids", "block_tokens", "num_found"),
    [
        (2048, (1, 2, 3, 4), 512, 2032),
        (2048, (1, 2, 9, 4), 512, 1024),
        (2048, (9, 2, 3, 4), 512, 0),
        (600, (1, 2), 512, 592),
        (600, (1, 9), 512, 512),
        (100, (1,), 512, 96),
        (2048, (), 512, 0),
        # A cache block that lies in two of the load's is shared where both are.
        (200, (1, 2, 9, 4), 50, 96),
        (200, (1, 2, 3, 4), 50, 192),
    ],
)
def test_prompt_finds_the_tokens_of_the_same_block_ids(
    num_tokens: int, block_ids: tuple[int, ...], block_tokens: int, num_found: int
) -> None:
    pool = BlockPool(1000, 16)
    pool.add("first", 2048, block_hashes(2048, (1, 2, 3, 4), block_tokens, 16))
    pool.compute("first", 4 * block_tokens)
    pool.add("next", num_tokens, block_hashes(num_tokens, block_ids, block_tokens, 16))
    assert pool.find("next").num_tokens == num_found


@pytest.mark.parametrize(
    ("num_tokens", "block_ids", "block_tokens", "num_shared"),
    [
        (2048, (1, 2, 3, 4), 512, 1792),
        (2048, (1, 2, 9, 4), 512, 1024),
        (2048, (9, 2, 3, 4), 512, 0),
        (600, (1, 2), 512, 512),
        (600, (1,), 512, 512),
        (2048, (), 512, 0),
        (400, (1, 2, 9, 4), 100, 192),
    ],
)
def test_prompt_shares_the_keys_of_the_same_block_ids(
    num_tokens: int, block_ids: tuple[int, ...], block_tokens: int, num_shared: int
) -> None:
    first = prefix_keys(2048, (1, 2, 3, 4), block_tokens)
    other = prefix_keys(num_tokens, block_ids, block_tokens)
    num_equal = sum(one == two for one, two in zip(first, other, strict=False))
    assert (BOUNDARIES[num_equal - 1] if num_equal else 0) == num_shared


@pytest.mark.parametrize(
    ("num_tokens", "block_ids", "block_tokens", "is_open", "expected"),
    [
        (1100, (1, 2, 3), 512, False, [32, 32, 4]),
        (1100, (1, 2), 512, False, [32, 32]),
        (600, (1, 2, 3), 512, False, [32, 5]),
        (100, (1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 10, False, [1, 1, 1, 1, 1, 1]),
        (1100, (1, 2), 512, True, [32, 36]),
        (100, (), 512, False, []),
    ],
)
def test_spans_count_the_hashes_of_each_block_of_the_load(
    num_tokens: int,
    block_ids: tuple[int, ...],
    block_tokens: int,
    is_open: bool,
    expected: list[int],
) -> None:
    spans = block_spans(num_tokens, block_ids, block_tokens, 16, is_open)
    assert [num for _, num in spans] == expected
    assert len({key for key, _ in spans}) == len(spans)
    assert sum(expected) == len(block_hashes(num_tokens, block_ids, block_tokens, 16, is_open))


def test_open_block_goes_on_to_the_end_of_prompt_and_response() -> None:
    first, second = ((7,), (7,)), ((7,), (8,))
    for (ours, others), is_same in ((first, True), (second, False)):
        keys = prefix_keys(2048, ours, 512, True)
        assert len(keys) == num_keys(2048)
        assert (prefix_keys(4096, others, 512, True)[: len(keys)] == keys) is is_same
        hashes = block_hashes(2048, ours, 512, 16, True)
        assert len(hashes) == 2048 // 16
        assert (block_hashes(4096, others, 512, 16, True)[: len(hashes)] == hashes) is is_same


def test_open_block_after_a_shared_one_begins_where_that_ends() -> None:
    ours, others = (block_hashes(900, (1, own), 400, 16, True) for own in (7, 8))
    num_equal = sum(one == two for one, two in zip(ours, others, strict=True))
    assert num_equal == 400 // 16 and ours[:num_equal] == others[:num_equal]


def groups(rate: float, number: int, num_groups: int) -> list[Arrival]:
    """Return arrivals of as many groups, each with three blocks of its own that its prompts share.

    A cycle of groups visits instances in turn, which is the worst for their caches.
    """
    return [
        Arrival(
            index / rate,
            PROMPT_TOKENS,
            20,
            block_ids=(*(100 + 3 * (index % num_groups) + b for b in range(3)), 10_000 + index),
        )
        for index in range(number)
    ]


@pytest.mark.parametrize("strategy", ["unified", "vllm"])
def test_groups_of_prompts_begin_sooner_where_routing_knows_their_beginnings(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = replace(SCENARIO.cluster, num_instances=4)
    shares = keeping_hidden(STRATEGIES[strategy], on=False)
    scenario = Scenario(cluster, shares, SCENARIO.slo)
    load = groups(rate=24.0, number=360, num_groups=60)
    knowing = scenario.serve(load, stop=AT_END)
    monkeypatch.setattr(simulation, "prefix_keys", lambda *_: ())
    blind = scenario.serve(load, stop=AT_END)
    assert mean_ttft_s(knowing) < 0.8 * mean_ttft_s(blind)
    assert knowing.attainment >= blind.attainment
