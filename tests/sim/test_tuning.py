"""A number of ``Tuning`` only affects the strategies that read it."""

from dataclasses import asdict, replace
from functools import cache
from random import Random

import pytest
from support.outcomes import CELL

from macroserve.core.request import Slo
from macroserve.core.strategies import STRATEGIES
from macroserve.core.tuning import DEFAULT_TUNING
from macroserve.sim.results import AT_END, RunResult
from macroserve.sim.scenario import Scenario
from macroserve.workload.datasets import WORKLOADS
from macroserve_lab.arrivals import bursty

pytestmark = pytest.mark.simulation

OTHER = {
    "chunk_tokens": 64,
    "late_value": 1.0,
    "kv_padding": 1.0,
    "kv_reserve": 0.4,
    "lending_buffer": 1.0,
    "offload_threshold_s": 0.5,
    "lp_batch_size": 4,
    "hp_free_share": 0.6,
}
RANDOM = Random(0)
ARRIVALS = bursty(24.0, 1.0, 4.0, WORKLOADS["ShareGPT"].lengths(RANDOM), RANDOM)
SCENARIO = Scenario(
    # Memory runs short, and requests become late.
    replace(CELL, num_instances=3, kv_bytes=4 << 30),
    STRATEGIES["vllm"],
    Slo(2.0, 0.1),
    high_priority_ratio=1 / 3,
)
TIGHT = replace(SCENARIO, cluster=replace(SCENARIO.cluster, kv_bytes=2 << 30), slo=Slo(1.0, 0.1))
"""Memory is short for prompts that wait, even beside responses that wait for theirs."""


def served(strategy: str, scenario: Scenario = SCENARIO, **numbers: float) -> RunResult:
    tuning = replace(DEFAULT_TUNING, **numbers)
    scenario = replace(scenario, strategy=STRATEGIES[strategy], tuning=tuning)
    return scenario.serve(ARRIVALS, stop=AT_END)


by_default = cache(served)


def test_every_number_of_the_tuning_is_read_and_tried() -> None:
    known = set(asdict(DEFAULT_TUNING))
    assert OTHER.keys() == known
    assert set().union(*(strategy.tunables for strategy in STRATEGIES.values())) == known


@pytest.mark.parametrize(
    ("strategy", "number"),
    [(name, number) for name in STRATEGIES for number in sorted(STRATEGIES[name].tunables)],
)
def test_number_that_a_strategy_reads_changes_what_happens(strategy, number) -> None:
    assert any(
        served(strategy, scenario, **{number: OTHER[number]}) != by_default(strategy, scenario)
        for scenario in (SCENARIO, TIGHT)
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_numbers_that_a_strategy_does_not_read_change_nothing(strategy) -> None:
    others = OTHER.keys() - STRATEGIES[strategy].tunables
    assert served(strategy, **{each: OTHER[each] for each in others}) == by_default(strategy)
