"""What came of simulated requests, and how much of that a run is to tell."""

from dataclasses import dataclass
from itertools import pairwise
from math import inf
from statistics import mean
from typing import NamedTuple

QUARTERS = 4


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
        of each next quarter; none where there are fewer verdicts than quarters."""
        num = len(self.verdicts)
        if num < QUARTERS:
            return ()
        ordered = sorted(self.verdicts, key=lambda v: v.num_prompt_tokens + v.num_output_tokens)
        bounds = [num * quarter // QUARTERS for quarter in range(QUARTERS + 1)]
        return tuple(
            mean([verdict.attained for verdict in ordered[start:end]])
            for start, end in pairwise(bounds)
        )
