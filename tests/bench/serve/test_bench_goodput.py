"""The search for goodput against endpoints whose attainment is a formula."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.bench.serve.goodput import MAX_STEPS, Goodput, search_goodput


def run_search(
    attainment: Callable[[float], float], start: float, level: float = 0.9, **limits: float
) -> tuple[Goodput, list[float]]:
    """Search the goodput; return it with the probed loads."""
    search = search_goodput(start, level, **limits)
    probes = [next(search)]
    try:
        while True:
            probes.append(search.send(attainment(probes[-1])))
    except StopIteration as end:
        return end.value, probes


def step(capacity: float) -> Callable[[float], float]:
    return lambda load: 1.0 if load <= capacity else 0.0


def queue(capacity: float) -> Callable[[float], float]:
    """An M/M/1 queue: the share of requests that wait less than 5 / capacity."""

    def attainment(load: float) -> float:
        if load >= capacity:
            return 0.0
        return 1 - load / capacity * math.exp(-(capacity - load) * 5 / capacity)

    return attainment


@given(
    capacity=st.floats(0.1, 1000),
    start_ratio=st.floats(2.0**-8, 2.0**8),
    tolerance=st.sampled_from([0.01, 0.05, 0.2]),
)
def test_search_finds_the_capacity_within_the_tolerance(
    capacity: float, start_ratio: float, tolerance: float
) -> None:
    found, probes = run_search(step(capacity), capacity * start_ratio, tolerance=tolerance)
    assert found.load is not None
    assert found.load <= capacity <= found.load * (1 + tolerance)
    assert found.holds_below and not found.is_capped
    assert len(probes) <= 2 + 8 + math.ceil(math.log2(math.log(2) / math.log1p(tolerance))) + 2


@pytest.mark.parametrize("start", [0.1, 3.0, 100.0])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_search_finds_where_a_smooth_attainment_crosses_the_level(
    start: float, level: float
) -> None:
    attainment = queue(capacity=20.0)
    found, _ = run_search(attainment, start, level)
    assert found.load is not None
    assert attainment(found.load) >= level > attainment(found.load * 1.05)


def test_search_probes_doubled_loads_then_bisects() -> None:
    found, probes = run_search(step(11.5), start=4.0)
    assert probes[:3] == [4, 8, 16]
    assert probes[3] == pytest.approx(math.sqrt(8 * 16))
    assert probes[-1] == pytest.approx(found.load and found.load / 2)


def test_search_with_no_load_that_holds_finds_none() -> None:
    found, probes = run_search(lambda _: 0.0, start=8.0)
    assert found == Goodput(level=0.9, load=None)
    assert probes == [8.0 / 2**n for n in range(MAX_STEPS + 1)]


def test_search_with_every_load_holding_is_capped() -> None:
    found, probes = run_search(lambda _: 1.0, start=8.0)
    assert found.load == 8.0 * 2**MAX_STEPS and found.is_capped
    assert len(probes) == MAX_STEPS + 2


@pytest.mark.parametrize("max_load", [8.0, 9.0, 31.0, 32.0])
def test_search_stays_below_the_highest_load(max_load: float) -> None:
    found, probes = run_search(lambda _: 1.0, start=8.0, max_load=max_load)
    assert max(probes) == max_load == found.load
    assert found.is_capped
    assert probes[:-1] == sorted(set(probes[:-1]))
    assert probes[-1] == max_load / 2


def test_search_reports_a_lower_load_that_misses() -> None:
    def dip(load: float) -> float:
        return 0.8 if 4 < load < 7 else step(12.0)(load)

    found, _ = run_search(dip, start=8.0)
    assert found.load == pytest.approx(12.0, rel=0.05)
    assert found.lower_attainment == 0.8
    assert not found.holds_below


def test_goodput_with_a_lower_load_just_at_the_level_holds_below() -> None:
    assert Goodput(level=0.9, load=8.0, lower_attainment=0.9).holds_below


@pytest.mark.parametrize("level", [0.0, -0.1, 1.01, 90, math.nan])
def test_search_with_a_level_that_is_no_share_is_refused(level: float) -> None:
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        search_goodput(1.0, level)


def test_search_that_starts_above_the_highest_load_is_refused() -> None:
    with pytest.raises(ValueError, match="only loads up to 3 last for a whole probe"):
        search_goodput(4.0, 0.9, max_load=3.0)
