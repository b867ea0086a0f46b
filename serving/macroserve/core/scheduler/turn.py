"""A turn is the decodes of one step: all of them, or those that cannot rest.

A step with all decodes can take longer than the tightest TPOT target bears, while others have
looser targets and are ahead of them. These rest then, until they are due: a backlog of patient
responses leaves the steps to the urgent ones.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from macroserve.core.latency import LatencyModel
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.decoding import Decoding
from macroserve.core.scheduler.sequence import Sequence

BEARABLE_SHARE = 0.5
"""Share of the tightest TPOT target up to which a step has decodes that could rest. Prompts, and
time to save, get the other half."""

DUE_SHARE = 0.5
"""Time by which a response stays ahead of its target while it rests, in TPOT targets of its own."""

LONGEST_REST = 4.0
"""Longest time from one token of a response to the next while it rests, in TPOT targets of its own,
however far ahead it is: no longer than the longest step of ``unified``."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn holds the requests that decode in a step, and what they have in the cache.

    ids: ids of the requests.
    num_tokens: cached tokens of all together.
    num_hidden_tokens: those of them that are cached as hidden states.
    """

    ids: tuple[str, ...]
    num_tokens: int
    num_hidden_tokens: int

    @classmethod
    def of_all(cls, decoding: Decoding) -> "Turn":
        return cls(tuple(decoding), decoding.num_tokens, decoding.num_hidden_tokens)

    @classmethod
    def of(cls, seqs: Iterable[Sequence]) -> "Turn":
        ids, num_tokens, num_hidden_tokens = list[str](), 0, 0
        for seq in seqs:
            ids.append(seq.request_id)
            num_tokens += seq.num_tokens
            num_hidden_tokens += seq.num_tokens if seq.cache is CacheKind.HIDDEN else 0
        return cls(tuple(ids), num_tokens, num_hidden_tokens)

    def step_s(self, latency: LatencyModel, drafted: float) -> float:
        """Return the predicted time of a step of these decodes and nothing else, seconds.

        drafted: drafted tokens that each is expected to verify.
        """
        num = len(self.ids)
        work = latency.work((), num, self.num_tokens, self.num_hidden_tokens, num * drafted)
        return latency.predict(work)


def turn_of(decoding: Decoding, latency: LatencyModel, now: float, may_rest: bool) -> Turn:
    """Return the decodes of the next step.

    All, if none may rest, none has a looser target, or the tightest one bears them. Else those with
    the tightest target or a TBT target, those that are due, and of the others as many as it bears,
    the least ahead first. O(n log n) for n decodes.
    """
    every, tightest_s, expected = Turn.of_all(decoding), decoding.min_tpot_s, decoding.speculation
    if not may_rest or not decoding.has_looser:
        return every
    bearable_s = BEARABLE_SHARE * tightest_s * expected.emitted / latency.error_factor
    if every.step_s(latency, expected.drafted) <= bearable_s:
        return every
    needed, ahead = list[Sequence](), list[Sequence]()
    for seq in decoding.values():
        must = seq.tpot_s <= tightest_s or seq.request.slo.tbt_s is not None or is_due(seq, now)
        (needed if must else ahead).append(seq)
    ahead.sort(key=lambda seq: seq.tpot_budget_until_s)

    def step_s(num_more: int) -> float:
        return Turn.of([*needed, *ahead[:num_more]]).step_s(latency, expected.drafted)

    num_more = bisect_right(range(1, len(ahead) + 1), bearable_s, key=step_s)
    return Turn.of([*needed, *ahead[:num_more]])


def is_due(seq: Sequence, now: float) -> bool:
    """Return whether a response has to go on to keep its own TPOT target."""
    ahead_s, rested_s = seq.tpot_budget_until_s - now, now - seq.pending_since_s
    return ahead_s <= DUE_SHARE * seq.tpot_s or rested_s >= LONGEST_REST * seq.tpot_s
