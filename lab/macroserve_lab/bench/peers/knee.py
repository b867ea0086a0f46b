"""The knee: the rate up to which a deployment attains a level, interpolated on swept rates."""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple


class Knee(NamedTuple):
    """The rate at which attainment falls below a level.

    is_outside: whether all swept rates are on one side of it; ``rate`` is then the nearest.
    """

    rate: float
    is_outside: bool


def knee(points: Iterable[tuple[float, float]], level: float) -> Knee:
    """Return the knee of rates with their attainments, in any order; at least one.

    Attainment is assumed to fall with the rate: where noise lets it rise, neighbors are pooled
    (isotonic regression). Between rates it is interpolated linearly.
    """
    pooled = _falling(sorted(points))
    rates = [rate for rate, _ in pooled]
    for (rate, attainment), (next_rate, next_attainment) in pairwise(pooled):
        if attainment >= level > next_attainment:
            share = (attainment - level) / (attainment - next_attainment)
            return Knee(rate + share * (next_rate - rate), False)
    return Knee(rates[-1] if pooled[-1][1] >= level else rates[0], True)


def _falling(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points with non-increasing attainments that are nearest by least squares."""
    blocks: list[tuple[float, int]] = []  # mean and number of points
    for _, attainment in points:
        blocks.append((attainment, 1))
        while len(blocks) > 1 and blocks[-2][0] < blocks[-1][0]:
            (mean, count), (last_mean, last_count) = blocks[-2:]
            total = count + last_count
            blocks[-2:] = [((mean * count + last_mean * last_count) / total, total)]
    fitted = (mean for mean, count in blocks for _ in range(count))
    return [(rate, mean) for (rate, _), mean in zip(points, fitted, strict=True)]
