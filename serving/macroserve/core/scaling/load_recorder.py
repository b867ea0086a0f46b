"""Record of a cell's recent requests, for forecasts and simulations."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from macroserve.core.request import DEFAULT_CLASS
from macroserve.core.scaling.load import LoadBucket, LoadReport

BUCKET_S = 10
NUM_BUCKETS = 60
SAMPLE_SIZE = 256

T = TypeVar("T")


class Chance(Protocol):
    """The part of ``random.Random`` that is used here."""

    def random(self) -> float: ...
    def randrange(self, stop: int, /) -> int: ...
    def sample(self, population: Sequence[T], k: int, /) -> list[T]: ...


_Sampled = tuple[tuple[int, int], str]
"""Prompt and output tokens of a request, and the name of its SLO class."""


@dataclass(slots=True)
class _Second:
    number: int
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class LoadRecorder:
    """Counts of the requests placed in one cell during the last ten minutes, and a sample of their
    lengths and SLO classes.

    start_s: start of the recording, seconds on the clock of ``now``.
    """

    def __init__(self, start_s: float, chance: Chance) -> None:
        self._start_s = start_s
        self._chance = chance
        self._seconds: deque[_Second] = deque()
        self._num_recent = 0
        self._sample: list[_Sampled] = []

    def add(
        self,
        prompt_tokens: int,
        output_tokens: int,
        now: float,
        slo_class: str = DEFAULT_CLASS,
    ) -> None:
        """Count a placed request.

        prompt_tokens: prompt tokens that no prefix cache is expected to have.
        output_tokens: predicted output tokens.
        """
        number = int(now)
        while self._seconds and self._seconds[0].number < number - NUM_BUCKETS * BUCKET_S:
            self._num_recent -= self._seconds.popleft().requests
        if not self._seconds or self._seconds[-1].number != number:
            self._seconds.append(_Second(number))
        second = self._seconds[-1]
        second.requests += 1
        second.prompt_tokens += prompt_tokens
        second.output_tokens += output_tokens
        self._num_recent += 1
        self._keep(((prompt_tokens, output_tokens), slo_class))

    def _keep(self, sampled: _Sampled) -> None:
        """Put the request in a random place of the sample, with a probability that makes the mean
        age of the sample half the span of the buckets."""
        if len(self._sample) < SAMPLE_SIZE:
            self._sample.append(sampled)
        elif self._chance.random() * self._num_recent < 2 * SAMPLE_SIZE:
            self._sample[self._chance.randrange(SAMPLE_SIZE)] = sampled

    def report(self, now: float) -> LoadReport:
        """Return a report of whole buckets since the start."""
        count = max(0, min(NUM_BUCKETS, int(now - self._start_s) // BUCKET_S))
        sums = [[0, 0, 0] for _ in range(count)]
        for second in self._seconds:
            # The present second is not over.
            index = (int(now) - 1 - second.number) // BUCKET_S
            if 0 <= index < count:
                sums[index][0] += second.requests
                sums[index][1] += second.prompt_tokens
                sums[index][2] += second.output_tokens
        buckets = (LoadBucket(i * BUCKET_S, *values) for i, values in enumerate(sums))
        return _with_sample(LoadReport(BUCKET_S, tuple(buckets)), self._sample)


def aged(report: LoadReport, age_s: float) -> LoadReport:
    """Return a report made ``age_s`` ago without buckets that are too old by now."""
    buckets = (
        msgspec.structs.replace(bucket, age_s=bucket.age_s + age_s) for bucket in report.buckets
    )
    kept = tuple(bucket for bucket in buckets if bucket.age_s < NUM_BUCKETS * BUCKET_S)
    sample = _sample_of(report) if kept else []
    return _with_sample(msgspec.structs.replace(report, buckets=kept), sample)


def total(reports: Sequence[LoadReport], chance: Chance) -> LoadReport:
    """Return the sum over cells, with a sample of lengths proportional to the cells' requests and
    the first latency model reported. Buckets are contiguous from the newest to the oldest."""
    sums: dict[int, list[int]] = {}
    for bucket in (bucket for report in reports for bucket in report.buckets):
        values = sums.setdefault(int(bucket.age_s // BUCKET_S), [0, 0, 0])
        values[0] += bucket.requests
        values[1] += bucket.prompt_tokens
        values[2] += bucket.output_tokens
    ages = range(min(sums), max(sums) + 1) if sums else ()
    buckets = (LoadBucket(i * BUCKET_S, *sums.get(i, (0, 0, 0))) for i in ages)
    known = next((report for report in reports if report.coefficients), LoadReport(BUCKET_S))
    summed = msgspec.structs.replace(known, bucket_s=BUCKET_S, buckets=tuple(buckets))
    return _with_sample(summed, _joined(reports, chance))


def _with_sample(report: LoadReport, sample: Sequence[_Sampled]) -> LoadReport:
    lengths, classes = tuple(zip(*sample, strict=True)) or ((), ())
    has_classes = any(name != DEFAULT_CLASS for name in classes)
    return msgspec.structs.replace(report, lengths=lengths, classes=classes if has_classes else ())


def _sample_of(report: LoadReport) -> list[_Sampled]:
    classes = report.classes or (DEFAULT_CLASS,) * len(report.lengths)
    return [*zip(report.lengths, classes, strict=False)]


def _joined(reports: Iterable[LoadReport], chance: Chance) -> list[_Sampled]:
    sampled = [report for report in reports if report.lengths]
    weights = [1 + sum(bucket.requests for bucket in report.buckets) for report in sampled]
    sample: list[_Sampled] = []
    for report, weight in zip(sampled, weights, strict=True):
        share = round(SAMPLE_SIZE * weight / sum(weights))
        sample += chance.sample(_sample_of(report), min(share, len(report.lengths)))
    return sample
