"""What came of simulated requests."""

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from math import inf
from operator import sub
from statistics import mean
from typing import NamedTuple

from macroserve.core.request import Request, Slo

QUARTERS = 4


class Record:
    """One request as its client sees it, and as the device holds it.

    decoding_s: when its first decode began. gaps_s: between its tokens, until it is judged.
    as_of_step, last_step: ``Streams``', while it decodes.
    """

    __slots__ = (
        "as_of_step",
        "decoding_s",
        "first_s",
        "gaps_s",
        "is_hidden",
        "last_s",
        "last_step",
        "num_computed",
        "num_emitted",
        "num_output",
        "request",
    )

    def __init__(self, request: Request, num_output: int) -> None:
        self.request = request
        self.num_output = num_output
        self.num_computed = 0
        self.num_emitted = 0
        self.first_s = 0.0
        self.last_s = 0.0
        self.is_hidden = False
        self.decoding_s = 0.0
        self.gaps_s = array("f")
        self.as_of_step = 0
        self.last_step = -1

    @property
    def num_tokens(self) -> int:
        return self.request.num_prompt_tokens + self.num_emitted

    @property
    def ended(self) -> bool:
        return self.num_emitted >= self.num_output

    def emit(self, at_s: Sequence[float]) -> None:
        """A token comes out at each of these times."""
        if not at_s:
            return
        if self.num_emitted:
            self.gaps_s.extend(map(sub, at_s, chain((self.last_s,), at_s)))
        else:
            self.first_s = at_s[0]
            self.gaps_s.extend(map(sub, islice(at_s, 1, None), at_s))
        self.num_emitted += len(at_s)
        self.last_s = at_s[-1]


Judge = Callable[[Record], bool]
"""Whether a request that has ended did so within its targets."""


def as_client(record: Record) -> bool:
    """All targets, as they are stated."""
    return _is_met(record, record.first_s, record.request.slo.num_slow(record.gaps_s))


def as_ecoserve(record: Record) -> bool:
    """As EcoServe counts: the wait for the switch to decoding belongs to the time to the first
    token, and the others' time counts from there."""
    return _is_met(record, max(record.first_s, record.decoding_s))


def as_aptserve(record: Record) -> bool:
    """Time to the first token, and the 99th percentile of the gaps between tokens (section 6.1)."""
    slo = record.request.slo
    is_steady = slo.is_steady(slo.num_slow(record.gaps_s), record.num_emitted - 1)
    return record.first_s <= record.request.deadline_s and is_steady


def _is_met(record: Record, first_s: float, num_slow: int = 0) -> bool:
    request, num_after = record.request, record.num_emitted - 1
    ttft_s, after_s = first_s - request.arrival_s, record.last_s - first_s
    return request.slo.is_met(ttft_s, after_s, num_after, num_slow)


class Verdict(NamedTuple):
    """What came of one request.

    wait_s: until its first token, or until it was refused. tpot_s: mean time of the tokens after
    the first. tbt_s: the 99th percentile (nearest rank) of the gaps between two of its tokens.
    """

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    wait_s: float
    tpot_s: float
    tbt_s: float
    refused: bool
    attained: bool

    @property
    def completion_s(self) -> float:
        """From the arrival to the last token."""
        return self.wait_s + (self.num_output_tokens - 1) * self.tpot_s

    @property
    def normalised_s(self) -> float:
        """For each token, from the arrival on."""
        return self.completion_s / self.num_output_tokens


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a run goes: until it is known of all requests that count whether they are within
    their targets, or as soon as ``goal``, an attainment, is out of reach.

    to_the_end: until each of them has ended, with a verdict on it, which takes longer than to know
        that it is late; or until their mean normalised latency is above ``limit_s`` for sure.
    """

    goal: float = 0.0
    to_the_end: bool = False
    limit_s: float = inf


DECIDED = Extent()
TO_THE_END = Extent(to_the_end=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the requests that count.

    requests: those of which it is known. attained: those of them within their targets.
    decided: whether it is known of all, or of so many that the goal is missed.
    verdicts: on each request that ended, in that order, where the run was to go to the end.
    kv_use: there, the mean share of the caches that held tokens, as each request found them.
    """

    requests: int
    attained: int
    decided: bool
    verdicts: tuple[Verdict, ...] = ()
    kv_use: float = 0.0

    @property
    def attainment(self) -> float:
        """1.0 where there were no requests."""
        return self.attained / self.requests if self.requests else 1.0

    @property
    def longest_wait_s(self) -> float:
        return max([verdict.wait_s for verdict in self.verdicts], default=0.0)

    @property
    def normalised_latency_s(self) -> float:
        """Mean time for each token, from the arrival on, of those that were not refused. Needs a
        verdict."""
        return mean([verdict.normalised_s for verdict in self.verdicts if not verdict.refused])

    @property
    def completion_s(self) -> float:
        """Mean time to the last token, of those that were not refused. Needs a verdict."""
        return mean([verdict.completion_s for verdict in self.verdicts if not verdict.refused])

    @property
    def by_size(self) -> tuple[float, ...]:
        """Attainment of the quarter of the requests with the fewest tokens, prompt and output, and
        of each next quarter. Needs as many verdicts as quarters."""
        num = len(self.verdicts)
        ordered = sorted(self.verdicts, key=lambda v: v.num_prompt_tokens + v.num_output_tokens)
        bounds = [num * quarter // QUARTERS for quarter in range(QUARTERS + 1)]
        return tuple(
            mean([verdict.attained for verdict in ordered[start:end]])
            for start, end in pairwise(bounds)
        )


class Verdicts:
    """Which of the requests that count have attained or missed their targets so far.

    num_requests: that will come. judge: of those that end. are_in: the run has gone as far as its
    ``extent`` says.
    """

    def __init__(
        self, num_requests: int, judge: Judge = as_client, extent: Extent = DECIDED
    ) -> None:
        self._num = num_requests
        self._judge = judge
        self._extent = extent
        self._normalised_s = 0.0
        self._coming: set[str] = set()
        self._open: set[str] = set()
        self._unanswered: deque[Record] = deque()
        self._num_attained = 0
        self._num_missed = 0
        self._verdicts: list[Verdict] = []

    @property
    def are_in(self) -> bool:
        if self._extent.to_the_end:
            is_lost = self._normalised_s > self._extent.limit_s * self._num
            return is_lost or len(self._verdicts) == self._num
        num_known = self._num_attained + self._num_missed
        num_in_reach = self._num - self._num_missed
        return num_known == self._num or num_in_reach < self._extent.goal * self._num

    @property
    def outcome(self) -> Outcome:
        num_known = self._num_attained + self._num_missed
        return Outcome(num_known, self._num_attained, self.are_in, tuple(self._verdicts))

    def expect(self, record: Record) -> None:
        """One that counts has come; in the order of their deadlines."""
        self._open.add(record.request.request_id)
        if self._extent.to_the_end:
            self._coming.add(record.request.request_id)
        self._unanswered.append(record)

    def ended(self, record: Record) -> None:
        attained = self._judge(record)
        self._decide(record, attained)
        self._note(record, record.first_s, attained=attained, refused=False)

    def refused(self, record: Record, now: float) -> None:
        self._decide(record, False)
        self._note(record, now, attained=False, refused=True)

    def pass_time(self, now: float) -> None:
        """Whoever is due before ``now`` and has no token yet has missed."""
        unanswered = self._unanswered
        while unanswered and (unanswered[0].num_emitted or unanswered[0].request.deadline_s < now):
            record = unanswered.popleft()
            if not record.num_emitted:
                self._decide(record, False)

    def _decide(self, record: Record, attained: bool) -> None:
        if record.request.request_id in self._open:
            self._open.remove(record.request.request_id)
            self._num_attained += attained
            self._num_missed += not attained

    def _note(self, record: Record, answer_s: float, *, attained: bool, refused: bool) -> None:
        request = record.request
        if request.request_id not in self._coming:
            return
        self._coming.remove(request.request_id)
        after_s = max(0.0, record.last_s - record.first_s)
        verdict = Verdict(
            request.arrival_s,
            request.num_prompt_tokens,
            record.num_output,
            answer_s - request.arrival_s,
            after_s / max(1, record.num_emitted - 1),
            Slo.steady_s(record.gaps_s),
            refused,
            attained,
        )
        self._verdicts.append(verdict)
        if not refused:
            self._normalised_s += verdict.normalised_s
