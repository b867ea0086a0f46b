"""One iteration: the inputs of a batching policy and the plan that it returns."""

from bisect import bisect_right
from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import chain
from math import ceil
from typing import NamedTuple

from macroserve.core.batch import Batch, BatchKind, HandedBack, Prefill
from macroserve.core.latency import LatencyModel, Work
from macroserve.core.scheduler.blocks import MISS, CacheKind, EngineCache, Hit
from macroserve.core.scheduler.config import OVERDUE_TTFTS, InstanceConfig
from macroserve.core.scheduler.decoding import Decoding
from macroserve.core.scheduler.estimators import Inflow, LengthPredictor
from macroserve.core.scheduler.running import Running
from macroserve.core.scheduler.sequence import Sequence
from macroserve.core.scheduler.waiting import WaitingQueue
from macroserve.core.status import Phase

BEARABLE_SHARE = 0.5
"""Maximum step time, as a share of the tightest TPOT target, with decodes that could rest; the rest
of the time is for prompts."""

DUE_SHARE = 0.5
"""Minimum lead of a resting response over its target, in its own TPOT targets."""

LONGEST_REST = 4.0
"""Maximum gap between two tokens of a resting response, in its own TPOT targets: the longest step
of ``unified``."""


@dataclass(frozen=True, slots=True)
class DecodeTurn:
    """Decodes of one step: all of them, or those that cannot rest.

    If a step with all decodes takes too long for the tightest TPOT target, responses ahead of a
    looser one rest until they are due, so that patient responses do not slow down urgent ones.
    """

    ids: tuple[str, ...]
    num_tokens: int
    """Cached tokens of all together."""
    num_hidden_tokens: int
    """Those cached as hidden states."""

    @classmethod
    def of_all(cls, decoding: Decoding) -> "DecodeTurn":
        return cls(tuple(decoding), decoding.num_tokens, decoding.num_hidden_tokens)

    @classmethod
    def of(cls, seqs: Iterable[Sequence]) -> "DecodeTurn":
        ids, num_tokens, num_hidden_tokens = list[str](), 0, 0
        for seq in seqs:
            ids.append(seq.request_id)
            num_tokens += seq.num_tokens
            num_hidden_tokens += seq.num_tokens if seq.cache is CacheKind.HIDDEN else 0
        return cls(tuple(ids), num_tokens, num_hidden_tokens)

    def step_s(self, latency: LatencyModel, drafted: float) -> float:
        """Return the predicted seconds of a step of these decodes, each with ``drafted`` tokens to
        verify, and nothing else."""
        num = len(self.ids)
        work = latency.work((), num, self.num_tokens, self.num_hidden_tokens, num * drafted)
        return latency.predict(work)


def turn_of(decoding: Decoding, latency: LatencyModel, now: float, may_rest: bool) -> DecodeTurn:
    """Return the decodes of the next step.

    All, if none may rest, none has a looser target, or the tightest target allows all. Otherwise
    those with the tightest target or a TBT target, those that are due, and others, the least ahead
    first, up to the time that the tightest target allows. O(n log n) for n decodes.
    """
    every, tightest_s, expected = (
        DecodeTurn.of_all(decoding),
        decoding.min_tpot_s,
        decoding.speculation,
    )
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
        return DecodeTurn.of([*needed, *ahead[:num_more]]).step_s(latency, expected.drafted)

    num_more = bisect_right(range(1, len(ahead) + 1), bearable_s, key=step_s)
    return DecodeTurn.of([*needed, *ahead[:num_more]])


def is_due(seq: Sequence, now: float) -> bool:
    """Return whether a response must continue to keep its own TPOT target."""
    ahead_s, rested_s = seq.tpot_budget_until_s - now, now - seq.pending_since_s
    return ahead_s <= DUE_SHARE * seq.tpot_s or rested_s >= LONGEST_REST * seq.tpot_s


class Pick(NamedTuple):
    """Prefill of ``num_tokens`` prompt tokens of a sequence."""

    seq: Sequence
    num_tokens: int
    num_before: int
    """Prompt tokens computed before or found in the prefix cache."""
    num_blocks: int = 0
    """KV blocks to reserve first; 0 if the sequence has its blocks."""
    num_shared: int = 0
    """Those that other requests hold."""
    cache: CacheKind = CacheKind.KV

    def to_prefill(self) -> Prefill:
        return Prefill(self.seq.request_id, self.num_tokens, self.cache is CacheKind.HIDDEN)


class Resume(NamedTuple):
    """A paused response to continue, with the blocks that it gets."""

    seq: Sequence
    num_blocks: int
    """Additional blocks, from the lender, if any, or from the free blocks."""
    lender: Sequence | None = None


class Plan(NamedTuple):
    """Decision of a batching policy."""

    picks: Many[Pick]
    """Prefills in execution order."""
    decodes: tuple[str, ...]
    """Ids of the requests to decode."""
    reason: str
    resumes: tuple[Resume, ...] = ()
    """The decodes that were paused."""
    preempted: Many[Sequence] = ()
    """Running requests that give up their caches first, if the policy chooses them."""
    slack_exhausted: bool = False
    """Whether prompts could begin or continue if the decodes had saved enough time."""
    repeatable: bool = False
    """Whether the policy would decide the same decodes and nothing else until one of the events
    that ``repeated_plan`` lists."""

    def without(self, preempted: list[Sequence]) -> "Plan":
        """Return the plan without requests that have since lost their caches."""
        ids = {seq.request_id for seq in preempted}
        decodes = tuple([request_id for request_id in self.decodes if request_id not in ids])
        picks = [pick for pick in self.picks if pick.seq.request_id not in ids]
        return self._replace(picks=picks, decodes=decodes)

    @property
    def kind(self) -> BatchKind:
        if self.picks:
            return BatchKind.MIXED if self.decodes else BatchKind.PREFILL
        return BatchKind.DECODE if self.decodes else BatchKind.IDLE

    def to_batch(
        self, preempted: Many[Sequence], handed_back: Many[HandedBack], predicted_s: float
    ) -> Batch:
        return Batch(
            self.kind,
            tuple([pick.to_prefill() for pick in self.picks]),
            self.decodes,
            tuple([seq.request_id for seq in preempted]),
            tuple(handed_back),
            predicted_s,
            self.reason,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationInputs:
    """State from which one iteration is decided.

    Read-only, except that EcoServe's policy starts clocks (``Decoding.start_clocks``).
    """

    now: float
    config: InstanceConfig
    latency: LatencyModel
    lengths: LengthPredictor
    waiting: WaitingQueue
    running: Running
    phase: Phase
    """Phase of the previous batches."""
    phase_since_s: float
    prefilled_s: float
    """Time of the last batch with prefills, seconds."""
    pace_s: float
    """Recent mean time per token of the decodes, seconds."""
    turn: DecodeTurn
    """The decodes of this iteration, unless the policy chooses among them."""
    decode_s: float
    """Predicted time of a step with these decodes and nothing else, seconds."""
    inflow: Inflow
    preempted: Many[Sequence] = ()
    """Sequences that lost their cache in this iteration."""
    cache: EngineCache | None = None

    @property
    def decoding(self) -> Decoding:
        return self.running.decoding

    @property
    def rests(self) -> bool:
        """Return whether some response rests in this iteration."""
        return len(self.turn.ids) < len(self.decoding)

    @property
    def only_decodes(self) -> bool:
        """Return whether all requests with a seat decode, and no waiting one could get a seat."""
        return len(self.decoding) == len(self.running) > 0 and not self.may_prefill

    @property
    def may_prefill(self) -> bool:
        """Return whether a prompt has begun, or waits and could get a seat."""
        has_seat = len(self.running) < self.config.max_num_seqs
        return bool(self.running.prefilling) or (bool(self.waiting) and has_seat)

    @property
    def decode_token_s(self) -> float:
        """Return ``decode_s`` per token, seconds."""
        return self.decode_s / self.decoding.speculation.emitted

    def decodes_with(self, resumes: Many[Resume]) -> tuple[str, ...]:
        """Return the ids of all decoding requests and of the paused ones that resume."""
        return (*self.decoding, *[resume.seq.request_id for resume in resumes])

    def tokens_of(self, num_decodes: int) -> int:
        """Return the tokens that decodes take in a batch, including drafted ones."""
        return ceil(num_decodes * (1 + self.decoding.speculation.drafted))

    @property
    def overdue(self) -> bool:
        """Return whether some prompt has waited too long by its own target."""
        now = self.now
        return self.waiting.overdue_from_s < now or any(
            seq.overdue_from_s < now for seq in self.running.prefilling.values()
        )

    @property
    def starved(self) -> bool:
        """Return whether some prompt has waited too long, without any prefill in that time."""
        now, begun = self.now, self.running.prefilling.values()

        def no_prefill_within(ttft_s: float) -> bool:
            return self.prefilled_s < now - OVERDUE_TTFTS * ttft_s

        # Check the tightest target first: it usually rules out a scan of a long queue.
        targets_s = [self.waiting.min_ttft_s, *[seq.request.slo.ttft_s for seq in begun]]
        return no_prefill_within(min(targets_s)) and any(
            seq.overdue_from_s < now and no_prefill_within(seq.request.slo.ttft_s)
            for seq in chain(begun, self.waiting)
        )

    def is_patient(self, seq: Sequence) -> bool:
        """Return whether a prompt has a longer TTFT target than another recent request."""
        return seq.request.slo.ttft_s > self.inflow.min_ttft_s(self.now)

    def hit(self, seq: Sequence) -> Hit:
        """Return the part of a waiting prompt that the prefix cache holds.

        Sequences preempted in this iteration must not begin again in it and get no hit. The engine
        has not freed their blocks yet, so for others no block counts as held.
        """
        if self.cache is None:
            return MISS
        if not self.preempted:
            return self.cache.find(seq.request_id)
        if seq in self.preempted:
            return MISS
        return Hit(self.cache.find(seq.request_id).num_tokens)

    def prefill_tokens_within(self, budget_s: float) -> int:
        """Return the maximum prefill tokens of a batch with the turn's decodes within
        ``budget_s``."""
        num_decodes = len(self.turn.ids)
        return self.latency.prefill_tokens_within(
            budget_s - self.latency.rebuild_s(self.turn.num_hidden_tokens),
            self.config.max_batch_tokens,
            num_decodes=num_decodes,
            decode_context=self.turn.num_tokens,
            num_drafted=num_decodes * self.decoding.speculation.drafted,
        )

    def predict_s(self, picks: Many[Pick]) -> float:
        """Return the predicted time of a batch of these prefills alone, seconds."""
        return self.latency.predict(self.latency.work(_prefills(picks)))

    def work(self, plan: Plan, num_drafted: float | None = None) -> Work:
        """Return the work of the planned batch.

        num_drafted: drafted tokens that its decodes verify; None for the recent mean.
        """
        decoding = self.decoding
        if num_drafted is None:
            num_drafted = len(plan.decodes) * self.decoding.speculation.drafted
        if decoding.are_all(plan.decodes):
            turn = DecodeTurn.of_all(decoding)
        else:
            turn = DecodeTurn.of(decoding[request_id] for request_id in plan.decodes)
        picks, num_decodes = _prefills(plan.picks), len(plan.decodes)
        context, hidden = turn.num_tokens, turn.num_hidden_tokens
        return self.latency.work(picks, num_decodes, context, hidden, num_drafted)


def _prefills(picks: Many[Pick]) -> list[tuple[int, int]]:
    return [(pick.num_tokens, pick.num_before) for pick in picks]
