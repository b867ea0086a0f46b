"""MultiRes and SyncCoupled: which requests begin within compute and memory."""

from dataclasses import replace

import pytest

from macroserve.core.request import Request
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.sim.results import AT_END
from macroserve_lab.papers.econoserve.cases import (
    MODELS,
    MULTIRES,
    SYNC_COUPLED,
    TRACES,
    Variant,
    experiment,
)
from macroserve_lab.papers.econoserve.coupled import nearest
from macroserve_lab.papers.measurements import Metric


def _scheduler(variant: Variant, num_blocks: int, *waiting: tuple[int, int]) -> InstanceScheduler:
    """Return a scheduler; ``waiting`` are prompt tokens and expected tokens of the requests."""
    scenario = experiment(MODELS[0], TRACES[1], variant).scenario
    spec = scenario.cluster.instance_spec(scenario.strategy, scenario.slo)
    tuning = replace(spec.config.tuning, kv_padding=0.0)
    config = replace(spec.config, num_blocks=num_blocks, tuning=tuning)
    scheduler = InstanceScheduler(config, spec.latency())
    for index, (num_prompt, expected) in enumerate(waiting):
        request = Request(
            f"r{index}", float(index), num_prompt, expected, scenario.slo, expected_tokens=expected
        )
        assert scheduler.add_request(request, 9.0) is None
    return scheduler


def _began(variant: Variant, num_blocks: int, *waiting: tuple[int, int]) -> list[tuple[str, int]]:
    batch = _scheduler(variant, num_blocks, *waiting).schedule(9.0)
    return [(prefill.request_id, prefill.num_tokens) for prefill in batch.prefills]


@pytest.mark.parametrize(
    ("demands", "available", "order"),
    [
        ([], (100, 100), []),
        ([(50, 50), (100, 100)], (100, 100), [1]),  # the whole of both resources
        ([(50, 50), (50, 50)], (100, 100), [0, 1]),  # of equal ones the first, then the other
        ([(10, 90), (90, 10), (80, 80)], (100, 100), [2, 1]),  # then the nearest to what is left
        ([(10, 20), (10, 60), (10, 110)], (100, 100), [1, 0]),  # never beyond the memory
        ([(300, 40), (100, 40)], (100, 100), [0]),  # a long prompt demands what is left, no more
        ([(10, 40), (10, 40)], (0, 100), []),
        ([(10, 40), (10, 40)], (-5, 100), []),
        ([(60, 10), (60, 10), (60, 10)], (100, 100), [0, 1]),  # the second is cut, and the last
    ],
)
def test_nearest_chooses_by_distance_until_none_fits(demands, available, order) -> None:
    assert nearest(demands, available, (100, 100)) == order


def test_multires_begins_out_of_order_what_fits_best() -> None:
    # 20 blocks; prompt and response take 5, 18 and 4 of them, and the prompts' target is 512.
    waiting = ((64, 96), (480, 96), (64, 64))
    assert _began(MULTIRES, 20, *waiting) == [("r1", 480)]
    assert _began(MULTIRES, 24, *waiting) == [("r1", 480), ("r0", 32)]


def test_multires_reserves_the_whole_response_before_the_prompt() -> None:
    scheduler = _scheduler(MULTIRES, 20, (64, 96), (64, 200))
    scheduler.schedule(9.0)
    assert scheduler.running.blocks.held_by("r1") == 9  # 64 and 200 tokens
    assert scheduler.running.blocks.held_by("r0") == 5


def test_sync_coupled_begins_responses_of_one_length_together() -> None:
    # Lengths of one block: 60 and 64 tokens; the second is of another group.
    waiting = ((32, 60), (32, 300), (32, 64), (32, 64))
    assert _began(SYNC_COUPLED, 12, *waiting) == [("r0", 32), ("r2", 32), ("r3", 32)]
    assert _began(SYNC_COUPLED, 400, *waiting) == [
        ("r0", 32),
        ("r2", 32),
        ("r3", 32),
        ("r1", 32),
    ]


def test_sync_coupled_splits_a_group_that_does_not_fit() -> None:
    waiting = ((32, 64), (32, 64), (32, 64))
    assert _began(SYNC_COUPLED, 7, *waiting) == [("r0", 32), ("r1", 32)]


@pytest.mark.parametrize(
    ("variant", "num_tokens"), [(MULTIRES, 512), (SYNC_COUPLED, 1200)], ids=["multires", "sync"]
)
def test_prompts_of_groups_alone_pass_the_forward_size(variant: Variant, num_tokens: int) -> None:
    waiting = [(200, 64)] * 6
    assert sum(num for _, num in _began(variant, 400, *waiting)) == num_tokens


@pytest.mark.parametrize("variant", [MULTIRES, SYNC_COUPLED], ids=["multires", "sync"])
def test_coupled_baseline_with_known_lengths_never_preempts(variant: Variant) -> None:
    found = replace(experiment(MODELS[0], TRACES[1], variant), foresight=1.0)
    outcome = found.serve(4.0, 10.0, stop=AT_END)
    assert outcome.requests == len(outcome.results) > 0
    assert Metric.PREEMPTIONS.of(outcome) == 0.0
