"""Statistics of drawn arrivals: rates, burstiness, and foreseen lengths."""

from itertools import islice, pairwise
from random import Random

import numpy as np
import pytest

from macroserve.workload.arrivals import Arrival, arrivals, gamma_gaps, poisson, scaled
from macroserve_lab.arrivals import bursty, foreseen

NUM_DRAWS = 20_000


def times_of(rate: float, variation: float, seed: int, num: int = NUM_DRAWS) -> list[float]:
    gaps = gamma_gaps(rate, variation, np.random.default_rng(seed).gamma)
    return [arrival.at_s for arrival in islice(arrivals(gaps, lambda: (1, 1)), num)]


def test_poisson_arrivals_follow_the_rate_of_each_stretch():
    drawn = poisson([10.0, 0.0, 40.0], 100.0, [(7, 3)], Random(1))
    times = [arrival.at_s for arrival in drawn]
    assert times == sorted(times)
    counts = [sum(start <= t < start + 100 for t in times) for start in (0, 100, 200)]
    assert counts == pytest.approx([1000, 0, 4000], rel=0.1)
    assert set(drawn) == {Arrival(t, 7, 3) for t in times}


def test_poisson_gaps_are_exponential():
    times = [arrival.at_s for arrival in poisson([5.0], 4000.0, [(1, 1)], Random(2))]
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.2, rel=0.05)
    assert deviation == pytest.approx(mean, rel=0.05)


def test_poisson_with_equal_seeds_draws_equal_arrivals():
    lengths = [(prompt, 1) for prompt in range(1, 100)]
    first, again, other = (poisson([3.0], 60.0, lengths, Random(seed)) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("variation", [0.5, 1.0, 5.0])
def test_bursty_gaps_have_the_mean_and_variation_asked_for(variation):
    times = [arrival.at_s for arrival in bursty(10.0, variation, 20_000.0, [(1, 1)], Random(3))]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean_s = sum(gaps) / len(gaps)
    deviation_s = (sum((gap - mean_s) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean_s == pytest.approx(0.1, rel=0.1)
    assert deviation_s / mean_s == pytest.approx(variation, rel=0.1)


@pytest.mark.parametrize("rate", [0.5, 40.0])
@pytest.mark.parametrize("variation", [0.0, 0.5, 1.0, 3.0])
def test_numpy_gaps_have_the_mean_and_variation_asked_for(rate: float, variation: float):
    gaps = np.diff(np.array(times_of(rate, variation, seed=7)), prepend=0.0)
    assert gaps.min() >= 0
    # The mean of n gaps has a standard error of variation / sqrt(n), here at most 2 %.
    assert gaps.mean() == pytest.approx(1 / rate, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05, abs=1e-9)


def test_arrivals_at_another_rate_keep_their_pattern():
    slow, fast = (times_of(rate, 2.0, seed=3, num=100) for rate in (1.0, 4.0))
    assert [t / 4 for t in slow] == pytest.approx(fast)


def test_scaled_lengths_have_the_new_means_and_keep_their_spread():
    lengths = scaled([(10, 100), (30, 300)], 100.0, 20.0)
    assert lengths == [(50, 10), (150, 30)]
    assert scaled([(1, 1), (1000, 1000)], 1.0, 1.0) == [(1, 1), (2, 2)], "at least one token"
    assert scaled([(0, 0)], 5.0, 5.0) == [(1, 1)]


@pytest.mark.parametrize("accuracy", [0.0, 0.75, 1.0])
def test_foreseen_lengths_are_right_for_the_share_asked_for(accuracy):
    drawn = [Arrival(0.0, 1, length) for length in range(10_000)]
    told = foreseen(drawn, accuracy, Random(4))
    assert [arrival._replace(expected_tokens=None) for arrival in told] == drawn
    num_right = sum(arrival.expected_tokens == arrival.num_output_tokens for arrival in told)
    assert num_right / 10_000 == pytest.approx(accuracy, abs=0.02)
    assert all(0 <= arrival.expected_tokens < 10_000 for arrival in told)
