"""Simulated instances compute once what prompts of a trace share."""

import pytest
from support.experiment import EXPERIMENT

from macroserve.core.block_pool import BlockPool
from macroserve.core.strategies import STRATEGIES
from macroserve.sim.prefixes import block_hashes
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


def served(arrivals: list[Arrival], strategy: str = "unified", **fields: object) -> RunResult:
    changed = Scenario(SCENARIO.cluster, STRATEGIES[strategy], SCENARIO.slo)
    return changed.serve(arrivals, stop=AT_END, seed=1)


def mean_ttft_s(result: RunResult) -> float:
    return sum(each.wait_s for each in result.results) / len(result.results)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_shared_prompts_begin_sooner_and_all_requests_end(strategy: str) -> None:
    alone, shared = served(arrivals(0), strategy), served(arrivals(3), strategy)
    assert alone.requests == shared.requests == 60
    assert not any(result.refused for result in (*alone.results, *shared.results))
    assert mean_ttft_s(shared) < 0.7 * mean_ttft_s(alone)


def test_same_seed_gives_the_same_results() -> None:
    assert served(arrivals(2)) == served(arrivals(2))


def test_prompts_that_share_nothing_take_as_long_as_without_a_cache() -> None:
    without = [arrival._replace(block_ids=()) for arrival in arrivals(0)]
    assert mean_ttft_s(served(arrivals(0))) == pytest.approx(mean_ttft_s(served(without)))


@pytest.mark.parametrize(
    ("num_tokens", "block_ids", "num_found"),
    [
        (2048, (1, 2, 3, 4), 2032),
        (2048, (1, 2, 9, 4), 1024),
        (2048, (9, 2, 3, 4), 0),
        (600, (1, 2), 592),
        (600, (1, 9), 512),
        (100, (1,), 96),
        (2048, (), 0),
    ],
)
def test_prompt_finds_the_tokens_of_the_same_block_ids(
    num_tokens: int, block_ids: tuple[int, ...], num_found: int
) -> None:
    pool = BlockPool(1000, 16)
    pool.add("first", 2048, block_hashes(2048, (1, 2, 3, 4), 16))
    pool.compute("first", 2048)
    pool.add("next", num_tokens, block_hashes(num_tokens, block_ids, 16))
    assert pool.find("next").num_tokens == num_found
