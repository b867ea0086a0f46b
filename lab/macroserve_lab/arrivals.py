"""Arrivals of experiments: bursty ones, and ones whose output lengths are foreseen."""

from collections.abc import Sequence
from functools import partial
from random import Random

from macroserve.workload.arrivals import Arrival, Lengths, arrivals, gamma_gaps


def bursty(
    rate: float, variation: float, duration_s: float, lengths: Lengths, random: Random
) -> list[Arrival]:
    """Draw arrivals with gamma-distributed gaps; see ``gamma_gaps``."""
    gap_s = gamma_gaps(rate, variation, random.gammavariate)
    return list(arrivals(gap_s, partial(random.choice, lengths), end_s=duration_s))


def foreseen(requests: Sequence[Arrival], accuracy: float, random: Random) -> list[Arrival]:
    """Return the arrivals with expected output lengths: a request's own with the probability
    ``accuracy``, else that of a random request.

    An oracle has accuracy 1; EconoServe's predictor with padding 0.70 to 0.78 (section 3.2).
    """

    def expected(arrival: Arrival) -> int:
        known = random.random() < accuracy
        return (arrival if known else random.choice(requests)).num_output_tokens

    return [arrival._replace(expected_tokens=expected(arrival)) for arrival in requests]
