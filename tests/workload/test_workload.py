"""Plans: scaled, cut, and the same for the same seed."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.workload.arrivals import PlannedRequest
from macroserve.workload.lengths import Constant, Lognormal, Uniform
from macroserve.workload.load import Bounds, SyntheticLoad, TraceLoad, plan
from macroserve.workload.trace import Trace

ROWS = (
    PlannedRequest(0.0, 100, 10),
    PlannedRequest(2.0, 400, 1),
    PlannedRequest(6.0, 1000, 300),
    PlannedRequest(8.0, 7, 50),
)
TRACE = TraceLoad(Trace(ROWS), time_scale=1.0)
SYNTHETIC = SyntheticLoad(20.0, 1.0, Lognormal(340, 148), Uniform(5, 50))


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        (Bounds(), [(0, 100, 10), (2, 400, 1), (6, 1000, 300), (8, 7, 50)]),
        (Bounds(duration_s=6), [(0, 100, 10), (2, 400, 1)]),
        (Bounds(num_requests=1), [(0, 100, 10)]),
        (Bounds(duration_s=7, num_requests=2), [(0, 100, 10), (2, 400, 1)]),
        (Bounds(length_scale=0.1), [(0, 10, 1), (2, 40, 1), (6, 100, 30), (8, 1, 5)]),
        (
            Bounds(max_prompt_tokens=200, max_output_tokens=20),
            [(0, 100, 10), (2, 200, 1), (6, 200, 20), (8, 7, 20)],
        ),
        (
            Bounds(length_scale=0.5, max_prompt_tokens=300, max_output_tokens=100),
            [(0, 50, 5), (2, 200, 1), (6, 300, 100), (8, 4, 25)],
        ),
    ],
)
def test_bounds_cut_a_trace(bounds: Bounds, expected: list[tuple[float, int, int]]) -> None:
    assert plan(TRACE, bounds, seed=0) == tuple(PlannedRequest(*row) for row in expected)


def test_a_time_scale_speeds_a_trace_up_before_the_duration_cuts_it() -> None:
    faster = plan(TRACE.at(2.0), Bounds(duration_s=3.5), seed=0)
    assert [r.arrival_s for r in faster] == [0.0, 1.0, 3.0]
    assert TRACE.at(2.0).intensity == 2.0


def test_a_trace_gives_no_more_intensity_than_it_lasts_for() -> None:
    highest = TRACE.max_intensity(duration_s=2.0)
    assert highest == 4.0
    assert plan(TRACE.at(highest), Bounds(), 0)[-1].arrival_s == 2.0
    assert SYNTHETIC.max_intensity(duration_s=2.0) == math.inf


def test_the_same_seed_gives_the_same_plan_and_another_one_another() -> None:
    bounds = Bounds(num_requests=50)
    assert plan(SYNTHETIC, bounds, seed=5) == plan(SYNTHETIC, bounds, seed=5)
    assert plan(SYNTHETIC, bounds, seed=5) != plan(SYNTHETIC, bounds, seed=6)


def test_another_rate_changes_nothing_but_the_arrivals() -> None:
    bounds = Bounds(num_requests=200)
    slow, fast = (plan(SYNTHETIC.at(rate), bounds, seed=1) for rate in (2.0, 8.0))
    assert [r.num_prompt_tokens for r in slow] == [r.num_prompt_tokens for r in fast]
    assert [r.num_output_tokens for r in slow] == [r.num_output_tokens for r in fast]
    assert [r.arrival_s / 4 for r in slow] == pytest.approx([r.arrival_s for r in fast])


def test_other_prompts_change_nothing_but_the_prompts() -> None:
    bounds = Bounds(num_requests=200)
    other = replace(SYNTHETIC, prompt_lengths=Constant(7))
    before, after = (plan(load, bounds, seed=1) for load in (SYNTHETIC, other))
    assert [replace(r, num_prompt_tokens=7) for r in before] == list(after)


@given(
    seed=st.integers(0, 2**32),
    rate=st.floats(0.1, 100),
    cv=st.sampled_from([0.0, 0.5, 1.0, 8.0]),
    scale=st.floats(0.001, 2),
    cap=st.none() | st.integers(1, 100),
)
def test_plans_keep_order_and_bounds(
    seed: int, rate: float, cv: float, scale: float, cap: int | None
) -> None:
    load = SyntheticLoad(rate, cv, Lognormal(340, 148), Constant(3))
    bounds = Bounds(30.0, 100, length_scale=scale, max_prompt_tokens=cap, max_output_tokens=cap)
    requests = plan(load, bounds, seed)
    arrivals = [r.arrival_s for r in requests]
    assert arrivals == sorted(arrivals)
    assert len(requests) <= 100
    assert all(0 <= r.arrival_s < 30 for r in requests)
    for request in requests:
        assert 1 <= request.num_prompt_tokens <= (cap or math.inf)
        assert 1 <= request.num_output_tokens <= (cap or math.inf)


@pytest.mark.parametrize(
    "bounds",
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
def test_impossible_bounds_are_refused(bounds: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Bounds(**bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rate", "cv"),
    [(0, 1), (-1, 1), (math.nan, 1), (math.inf, 1), (1, -1), (1, math.nan), (1, 1e-9), (1, 1e9)],
)
def test_impossible_arrivals_are_refused(rate: float, cv: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        SyntheticLoad(rate, cv, Constant(1), Constant(1))


@pytest.mark.parametrize("time_scale", [0, -1, math.nan, math.inf])
def test_impossible_time_scales_are_refused(time_scale: float) -> None:
    with pytest.raises(ValueError, match="time scale"):
        TraceLoad(Trace(ROWS), time_scale)
