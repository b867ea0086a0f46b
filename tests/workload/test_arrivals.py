from itertools import pairwise
from math import inf
from random import Random

import pytest

from macroserve.sim.events import EventQueue
from macroserve.workload.arrivals import Arrival, bursty, foreseen, poisson, scaled


def test_events_come_by_time_and_equal_ones_in_the_order_in_which_they_were_put():
    queue = EventQueue()
    for at_s, event in [(2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b"), (0.5, "first")]:
        queue.put(at_s, event)
    order = []
    while queue.next_s < inf:
        order.append(queue.pop())
    assert order == [(0.5, "first"), (1.0, "a"), (1.0, "b"), (2.0, "c"), (2.0, "d")]


def test_arrivals_follow_the_rate_of_each_stretch():
    arrivals = poisson([10.0, 0.0, 40.0], 100.0, [(7, 3)], Random(1))
    times = [arrival.at_s for arrival in arrivals]
    assert times == sorted(times)
    counts = [sum(start <= t < start + 100 for t in times) for start in (0, 100, 200)]
    assert counts == pytest.approx([1000, 0, 4000], rel=0.1)
    assert set(arrivals) == {Arrival(t, 7, 3) for t in times}


def test_gaps_are_exponential():
    times = [arrival.at_s for arrival in poisson([5.0], 4000.0, [(1, 1)], Random(2))]
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.2, rel=0.05)
    assert deviation == pytest.approx(mean, rel=0.05)


def test_the_seed_decides():
    lengths = [(prompt, 1) for prompt in range(1, 100)]
    first, again, other = (poisson([3.0], 60.0, lengths, Random(seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_lengths_are_stretched_to_their_means_and_keep_their_spread():
    lengths = scaled([(10, 100), (30, 300)], 100.0, 20.0)
    assert lengths == [(50, 10), (150, 30)]
    assert scaled([(1, 1), (1000, 1000)], 1.0, 1.0) == [(1, 1), (2, 2)], "at least one token"
    assert scaled([(0, 0)], 5.0, 5.0) == [(1, 1)]


@pytest.mark.parametrize("variation", [0.5, 1.0, 5.0])
def test_bursts_vary_as_they_are_told(variation):
    times = [arrival.at_s for arrival in bursty(10.0, variation, 20_000.0, [(1, 1)], Random(3))]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean_s = sum(gaps) / len(gaps)
    deviation_s = (sum((gap - mean_s) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean_s == pytest.approx(0.1, rel=0.1)
    assert deviation_s / mean_s == pytest.approx(variation, rel=0.1)


@pytest.mark.parametrize("accuracy", [0.0, 0.75, 1.0])
def test_so_many_lengths_are_foreseen(accuracy):
    arrivals = [Arrival(0.0, 1, length) for length in range(10_000)]
    told = foreseen(arrivals, accuracy, Random(4))
    assert [arrival._replace(expected_tokens=None) for arrival in told] == arrivals
    num_right = sum(arrival.expected_tokens == arrival.num_output_tokens for arrival in told)
    assert num_right / 10_000 == pytest.approx(accuracy, abs=0.02)
    assert all(0 <= arrival.expected_tokens < 10_000 for arrival in told)
