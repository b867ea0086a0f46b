"""Plans are scaled, limited, and reproducible by seed."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.workload.arrivals import Arrival
from macroserve.workload.lengths import Constant, Lognormal, Uniform
from macroserve.workload.load import LoadLimits, SyntheticLoad, TraceLoad, plan
from macroserve.workload.shared_prefix import SharedPrefix
from macroserve.workload.trace import Trace

ROWS = (
    Arrival(0.0, 100, 10),
    Arrival(2.0, 400, 1),
    Arrival(6.0, 1000, 300),
    Arrival(8.0, 7, 50),
)
TRACE = TraceLoad(Trace(ROWS), time_scale=1.0)
SYNTHETIC = SyntheticLoad(20.0, 1.0, Lognormal(340, 148), Uniform(5, 50))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (LoadLimits(), [(0, 100, 10), (2, 400, 1), (6, 1000, 300), (8, 7, 50)]),
        (LoadLimits(duration_s=6), [(0, 100, 10), (2, 400, 1)]),
        (LoadLimits(num_requests=1), [(0, 100, 10)]),
        (LoadLimits(duration_s=7, num_requests=2), [(0, 100, 10), (2, 400, 1)]),
        (LoadLimits(length_scale=0.1), [(0, 10, 1), (2, 40, 1), (6, 100, 30), (8, 1, 5)]),
        (
            LoadLimits(max_prompt_tokens=200, max_output_tokens=20),
            [(0, 100, 10), (2, 200, 1), (6, 200, 20), (8, 7, 20)],
        ),
        (
            LoadLimits(length_scale=0.5, max_prompt_tokens=300, max_output_tokens=100),
            [(0, 50, 5), (2, 200, 1), (6, 300, 100), (8, 4, 25)],
        ),
    ],
)
def test_plan_of_a_trace_keeps_its_limits(
    limits: LoadLimits, expected: list[tuple[float, int, int]]
) -> None:
    assert [arrival[:3] for arrival in plan(TRACE, limits, seed=0)] == expected


def test_shared_prefixes_change_no_gap_and_no_length_beyond_their_own() -> None:
    limits = LoadLimits(num_requests=20)
    shared = replace(SYNTHETIC, shared=SharedPrefix(3, 2, 100))
    for alone, sharing in zip(plan(SYNTHETIC, limits, 0), plan(shared, limits, 0), strict=True):
        assert sharing.num_prompt_tokens == 100 + alone.num_prompt_tokens
        assert sharing.at_s == alone.at_s and not alone.block_ids
        assert sharing.num_output_tokens == alone.num_output_tokens


def test_blocks_are_scaled_as_lengths_are() -> None:
    arrival = Arrival(0.0, 1024, 10, block_ids=(1, 2), block_tokens=512)
    assert LoadLimits(length_scale=0.1).applied(arrival).block_tokens == 51
    assert LoadLimits(length_scale=0.001).applied(arrival).block_tokens == 1
    assert LoadLimits(max_prompt_tokens=100).applied(arrival).block_tokens == 512


def test_trace_load_with_a_time_scale_is_faster_before_the_duration_ends_it() -> None:
    faster = plan(TRACE.at(2.0), LoadLimits(duration_s=3.5), seed=0)
    assert [r.at_s for r in faster] == [0.0, 1.0, 3.0]
    assert TRACE.at(2.0).intensity == 2.0


def test_max_intensity_of_a_trace_is_where_it_lasts_for_the_duration() -> None:
    highest = TRACE.max_intensity(duration_s=2.0)
    assert highest == 4.0
    assert plan(TRACE.at(highest), LoadLimits(), 0)[-1].at_s == 2.0
    assert SYNTHETIC.max_intensity(duration_s=2.0) == math.inf


def test_plan_with_equal_seeds_is_equal_and_with_others_different() -> None:
    limits = LoadLimits(num_requests=50)
    assert plan(SYNTHETIC, limits, seed=5) == plan(SYNTHETIC, limits, seed=5)
    assert plan(SYNTHETIC, limits, seed=5) != plan(SYNTHETIC, limits, seed=6)


def test_plan_at_another_rate_changes_only_the_times() -> None:
    limits = LoadLimits(num_requests=200)
    slow, fast = (plan(SYNTHETIC.at(rate), limits, seed=1) for rate in (2.0, 8.0))
    assert [r.num_prompt_tokens for r in slow] == [r.num_prompt_tokens for r in fast]
    assert [r.num_output_tokens for r in slow] == [r.num_output_tokens for r in fast]
    assert [r.at_s / 4 for r in slow] == pytest.approx([r.at_s for r in fast])


def test_plan_with_other_prompt_lengths_changes_only_the_prompts() -> None:
    limits = LoadLimits(num_requests=200)
    other = replace(SYNTHETIC, prompt_lengths=Constant(7))
    before, after = (plan(load, limits, seed=1) for load in (SYNTHETIC, other))
    assert [r._replace(num_prompt_tokens=7) for r in before] == list(after)


@given(
    seed=st.integers(0, 2**32),
    rate=st.floats(0.1, 100),
    cv=st.sampled_from([0.0, 0.5, 1.0, 8.0]),
    scale=st.floats(0.001, 2),
    cap=st.none() | st.integers(1, 100),
)
def test_plan_of_any_load_is_in_order_and_within_its_limits(
    seed: int, rate: float, cv: float, scale: float, cap: int | None
) -> None:
    load = SyntheticLoad(rate, cv, Lognormal(340, 148), Constant(3))
    limits = LoadLimits(30.0, 100, length_scale=scale, max_prompt_tokens=cap, max_output_tokens=cap)
    requests = plan(load, limits, seed)
    arrivals = [r.at_s for r in requests]
    assert arrivals == sorted(arrivals)
    assert len(requests) <= 100
    assert all(0 <= r.at_s < 30 for r in requests)
    for request in requests:
        assert 1 <= request.num_prompt_tokens <= (cap or math.inf)
        assert 1 <= request.num_output_tokens <= (cap or math.inf)


@pytest.mark.parametrize(
    "limits",
    [
        {"duration_s": 0.0},
        {"duration_s": math.nan},
        {"length_scale": 0.0},
        {"length_scale": math.inf},
        {"num_requests": 0},
        {"max_prompt_tokens": 0},
        {"max_output_tokens": -1},
    ],
)
def test_load_limits_that_are_impossible_raise(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        LoadLimits(**limits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rate", "cv"),
    [(0, 1), (-1, 1), (math.nan, 1), (math.inf, 1), (1, -1), (1, math.nan), (1, 1e-9), (1, 1e9)],
)
def test_synthetic_load_with_impossible_arrivals_raises(rate: float, cv: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        SyntheticLoad(rate, cv, Constant(1), Constant(1))


@pytest.mark.parametrize("time_scale", [0, -1, math.nan, math.inf])
def test_trace_load_with_an_impossible_time_scale_raises(time_scale: float) -> None:
    with pytest.raises(ValueError, match="time scale"):
        TraceLoad(Trace(ROWS), time_scale)
