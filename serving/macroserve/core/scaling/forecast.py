"""How much will be asked for in a minute, from what was asked for in the last ones.

A level, and a linear trend that fades out (Gardner and McKenzie's damped trend): simple enough to
be argued with, and it cannot run away. A slope is the median of all slopes between two buckets
(Theil and Sen), so that one odd bucket does not bend it; and a trend is what a long and a short one
agree upon, so that a step is none. Where too little is known for the long one, there is none.
"""

from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import fmean, median

from macroserve.core.scaling.load import LoadBucket, LoadReport

LEVEL_S = 60.0
"""The level is the mean over this long."""

BURST_S = 20.0
BURST_DEVIATIONS = 2.0
"""Unless more has come in the last BURST_S than chance explains: then it is the mean of those."""

TRENDS_S = (60.0, 180.0)
DAMPING = 0.9
"""Each further bucket ahead adds this much of the slope that the one before it added."""

CAP = 2.0
"""A forecast is at most this many times the level."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked for per second."""

    requests: float
    prompt_tokens: float
    output_tokens: float


def forecast(load: LoadReport, horizon_s: float) -> Demand | None:
    """The demand expected ``horizon_s`` from now, never negative; None where nothing is known.

    Tokens per request are taken to stay as they were while the level was measured.
    """
    buckets, bucket_s = load.buckets, load.bucket_s
    if not buckets:
        return None
    recent = _latest(buckets, bucket_s, LEVEL_S)
    burst = _latest(buckets, bucket_s, BURST_S)
    level = _mean(recent)
    usual = level * len(burst)
    if sum(bucket.requests for bucket in burst) > usual + BURST_DEVIATIONS * sqrt(usual):
        recent, level = burst, _mean(burst)
    # From the middle of what the level was measured on to the end of the horizon.
    num_ahead = horizon_s / bucket_s + (len(recent) - 1) / 2
    reach = DAMPING * (1 - DAMPING**num_ahead) / (1 - DAMPING)
    requests = min(max(0.0, level + _trend(buckets, bucket_s) * reach), CAP * level)
    num_recent = sum(bucket.requests for bucket in recent)
    if not num_recent:
        return Demand(0.0, 0.0, 0.0)
    per_s = requests / bucket_s / num_recent
    return Demand(
        requests / bucket_s,
        per_s * sum(bucket.prompt_tokens for bucket in recent),
        per_s * sum(bucket.output_tokens for bucket in recent),
    )


def _latest(
    buckets: tuple[LoadBucket, ...], bucket_s: float, span_s: float
) -> tuple[LoadBucket, ...]:
    return buckets[: max(1, round(span_s / bucket_s))]


def _mean(buckets: tuple[LoadBucket, ...]) -> float:
    return fmean(bucket.requests for bucket in buckets)


def _slope(buckets: tuple[LoadBucket, ...]) -> float:
    """Requests per bucket gained from one bucket to the next; ``buckets`` are newest first."""
    slopes = [
        (newer.requests - older.requests) / (there - here)
        for (here, newer), (there, older) in combinations(enumerate(buckets), 2)
    ]
    return median(slopes) if slopes else 0.0


def _trend(buckets: tuple[LoadBucket, ...], bucket_s: float) -> float:
    """The flatter slope, or none where one goes up and the other down."""
    if len(buckets) * bucket_s < max(TRENDS_S):
        return 0.0
    slopes = [_slope(_latest(buckets, bucket_s, span_s)) for span_s in TRENDS_S]
    return 0.0 if min(slopes) < 0 < max(slopes) else min(slopes, key=abs)
