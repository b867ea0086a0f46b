"""Starts take time, and some fail."""

from random import Random
from statistics import fmean, stdev

import pytest

from macroserve.sim.autoscaling.start_up import StartUp


def drawn(start_up: StartUp, num: int = 2000, seed: int = 0) -> list:
    random = Random(seed)
    return [start_up.draw(random) for _ in range(num)]


def test_starts_without_variation_take_equally_long() -> None:
    assert {*drawn(StartUp(100.0))} == {(100.0, False)}


def test_starts_vary_by_their_coefficient() -> None:
    times_s = [start.after_s for start in drawn(StartUp(100.0, variation=0.5))]
    assert fmean(times_s) == pytest.approx(100.0, rel=0.05)
    assert stdev(times_s) == pytest.approx(50.0, rel=0.1)


def test_starts_fail_as_often_as_said_and_before_their_end() -> None:
    starts = drawn(StartUp(100.0, failing_share=0.3))
    failed = [start for start in starts if start.fails]
    assert len(failed) / len(starts) == pytest.approx(0.3, abs=0.03)
    assert fmean(start.after_s for start in failed) == pytest.approx(50.0, rel=0.1)
    assert {start.after_s for start in starts if not start.fails} == {100.0}


@pytest.mark.parametrize(
    "fields",
    [{"mean_s": -1.0}, {"variation": -0.1}, {"failing_share": 1.0}, {"failing_share": -0.1}],
)
def test_start_up_with_bad_values_is_refused(fields) -> None:
    with pytest.raises(ValueError, match="must be 0 or more"):
        StartUp(**{"mean_s": 60.0, **fields})
