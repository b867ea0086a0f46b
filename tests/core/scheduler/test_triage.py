"""Moore and Hodgson's rule is compared with every subset."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.scheduler.triage import infeasible


def feasible(jobs, free_at_s):
    done_s = free_at_s
    for deadline_s, cost_s in sorted(jobs):
        done_s += cost_s
        if done_s > deadline_s:
            return False
    return True


def alike(deadlines_s, costs_s, free_at_s=0.0):
    """Return the costs of the requests that triage defers if each costs its service time."""
    starts_s = [d - c for d, c in zip(deadlines_s, costs_s, strict=True)]
    return infeasible(starts_s, costs_s, [1.0] * len(costs_s), free_at_s)


def most_in_time(jobs, free_at_s):
    for size in range(len(jobs), -1, -1):
        if any(feasible(kept, free_at_s) for kept in combinations(jobs, size)):
            return size
    raise AssertionError


# Multiples of 1/64 add up exactly.
durations = st.integers(0, 640).map(lambda n: n / 64)
costs = st.lists(st.integers(1, 200).map(lambda n: n / 64), max_size=8, unique=True)


@given(costs, st.lists(durations, min_size=8, max_size=8), durations)
def test_triage_of_any_jobs_defers_as_few_as_possible(some_costs, deadlines, free_at_s):
    jobs = sorted(zip(deadlines, some_costs, strict=False))
    deadlines_s, costs_s = [d for d, _ in jobs], [c for _, c in jobs]
    deferred = alike(deadlines_s, costs_s, free_at_s)
    kept = [(deadline_s, cost_s) for deadline_s, cost_s in jobs if cost_s not in deferred]
    assert feasible(kept, free_at_s)
    assert len(kept) == most_in_time(jobs, free_at_s)


def test_triage_defers_nothing_when_all_can_be_in_time():
    assert alike([1.0, 2.0, 3.0], [0.9, 0.8, 0.7]) == set()


def test_triage_defers_the_costliest_for_the_others():
    assert alike([2.0, 2.1, 2.2], [1.5, 0.4, 0.5]) == {1.5}


@pytest.mark.parametrize(
    ("services_s", "costs_s", "expected"),
    [
        ([0.5], [3.0], set()),  # nobody is behind it
        ([1.5], [3.0], {3.0}),
        ([0.5, 0.5], [3.0, 1.0], {3.0}),  # which the second would wait for
        ([0.5, 0.5], [0.6, 3.0], {3.0}),
        ([0.5, 0.4], [0.6, 3.0], set()),
    ],
)
def test_triage_ends_a_request_with_its_service_and_starts_others_after_its_cost(
    services_s, costs_s, expected
):
    starts_s = [1.0 - service_s for service_s in services_s]
    assert infeasible(starts_s, costs_s, [1.0] * len(costs_s), 0.0) == expected


@pytest.mark.parametrize(
    ("ttfts_s", "expected"),
    [
        ([1.0, 1.0, 1.0], {1.0}),
        ([30.0, 1.0, 1.0], {0.5}),  # although the second is the costliest
        ([60.0, 30.0, 1.0], {0.5}),  # the longest target gives way first, whatever it costs
        ([30.0, 60.0, 1.0], {1.0}),
        ([30.0, 1.0, 30.0], {0.75}),  # never one with a shorter target
        ([1.0, 1.0, 30.0], {0.75}),
    ],
)
def test_triage_defers_requests_with_longer_targets_first(ttfts_s, expected):
    deadlines_s, costs_s = [1.0, 1.5, 2.0], [0.5, 1.0, 0.75]
    starts_s = [d - c for d, c in zip(deadlines_s, costs_s, strict=True)]
    assert infeasible(starts_s, costs_s, ttfts_s, 0.0) == expected


def test_triage_defers_as_many_with_longer_targets_as_the_others_need():
    starts_s, costs_s = [2.0, 2.0, 2.0, 0.25], [0.25, 0.5, 0.75, 1.0]
    assert infeasible(starts_s, costs_s, [30.0, 30.0, 30.0, 1.0], 0.0) == {0.5, 0.75}


@given(costs, st.lists(st.tuples(durations, st.sampled_from([1.0, 30.0])), min_size=8), durations)
def test_triage_keeps_requests_of_the_shortest_target_as_if_there_were_no_others(
    some_costs, jobs, free_at_s
):
    jobs = sorted((d, c, t) for c, (d, t) in zip(some_costs, jobs, strict=False))
    starts_s, costs_s = [d - c for d, c, _ in jobs], [c for _, c, _ in jobs]
    deferred = infeasible(starts_s, costs_s, [t for *_, t in jobs], free_at_s)
    shortest_s = min([t for *_, t in jobs], default=0.0)
    alone = [(d, c) for d, c, t in jobs if t == shortest_s]
    expected = alike([d for d, _ in alone], [c for _, c in alone], free_at_s)
    assert deferred & {c for _, c in alone} == expected
    assert feasible([(d, c) for d, c, _ in jobs if c not in deferred], free_at_s)
