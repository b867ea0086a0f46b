"""Forecast of the next minute's demand from the last minutes.

A level plus a linear trend that fades out (Gardner and McKenzie's damped trend), which is easy to
explain and cannot diverge. A slope is the median of all slopes between two buckets (Theil and Sen),
which is robust to outliers. A trend needs a long and a short slope that agree, so that a step is no
trend.
"""

from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import fmean, median

from macroserve.core.scaling.load import LoadBucket, LoadReport

LEVEL_S = 60.0
"""Window whose mean is the level, seconds."""

BURST_S = 20.0
BURST_DEVIATIONS = 2.0
"""If the last BURST_S have more requests than this many standard deviations above the mean, their
mean is the level."""

TRENDS_S = (60.0, 180.0)
"""Short and long window for slopes, seconds."""
DAMPING = 0.9
"""Factor by which the slope shrinks with each further bucket ahead."""

CAP = 2.0
"""Largest forecast, as a multiple of the level."""


@dataclass(frozen=True, slots=True)
class ExpectedLoad:
    """Expected arrivals per second."""

    requests: float
    prompt_tokens: float
    output_tokens: float


def forecast(load: LoadReport, horizon_s: float) -> ExpectedLoad | None:
    """Return the load expected ``horizon_s`` from now, never negative; None without data.

    Tokens per request are assumed to stay as in the window of the level.
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
    # Buckets from the middle of the level's window to the end of the horizon.
    num_ahead = horizon_s / bucket_s + (len(recent) - 1) / 2
    reach = DAMPING * (1 - DAMPING**num_ahead) / (1 - DAMPING)
    requests = min(max(0.0, level + _trend(buckets, bucket_s) * reach), CAP * level)
    num_recent = sum(bucket.requests for bucket in recent)
    if not num_recent:
        return ExpectedLoad(0.0, 0.0, 0.0)
    per_s = requests / bucket_s / num_recent
    return ExpectedLoad(
        requests / bucket_s,
        per_s * sum(bucket.prompt_tokens for bucket in recent),
        per_s * sum(bucket.output_tokens for bucket in recent),
    )


def growth(load: LoadReport, horizon_s: float) -> float:
    """Return the requests per second by which the load may grow within ``horizon_s``: the largest
    past growth between means of two minutes that far apart, 0 without such data.

    Covers loads that rise in steps, for which ``forecast`` has no trend.
    """
    buckets, bucket_s = load.buckets, load.bucket_s
    num, apart = round(LEVEL_S / bucket_s), round(horizon_s / bucket_s)
    minutes = [_mean(buckets[i : i + num]) for i in range(len(buckets) - num + 1)]
    rises = [newer - older for newer, older in zip(minutes, minutes[apart:], strict=False)]
    return max([0.0, *rises]) / bucket_s


def _latest(
    buckets: tuple[LoadBucket, ...], bucket_s: float, span_s: float
) -> tuple[LoadBucket, ...]:
    return buckets[: max(1, round(span_s / bucket_s))]


def _mean(buckets: tuple[LoadBucket, ...]) -> float:
    return fmean(bucket.requests for bucket in buckets)


def _slope(buckets: tuple[LoadBucket, ...]) -> float:
    """Return the growth in requests per bucket; ``buckets`` are newest first."""
    slopes = [
        (newer.requests - older.requests) / (there - here)
        for (here, newer), (there, older) in combinations(enumerate(buckets), 2)
    ]
    return median(slopes) if slopes else 0.0


def _trend(buckets: tuple[LoadBucket, ...], bucket_s: float) -> float:
    """Return the flatter slope, or 0 if one rises and the other falls."""
    if len(buckets) * bucket_s < max(TRENDS_S):
        return 0.0
    slopes = [_slope(_latest(buckets, bucket_s, span_s)) for span_s in TRENDS_S]
    return 0.0 if min(slopes) < 0 < max(slopes) else min(slopes, key=abs)
