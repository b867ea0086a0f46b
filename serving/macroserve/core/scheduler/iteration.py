"""A batching policy turns the inputs of one iteration into a plan."""

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
from macroserve.core.scheduler.turn import Turn
from macroserve.core.scheduler.waiting import WaitingQueue
from macroserve.core.status import Phase


class Pick(NamedTuple):
    """The plan prefills ``num_tokens`` prompt tokens of a sequence."""

    seq: Sequence
    num_tokens: int
    num_before: int
    """Prompt tokens computed before, or found in the prefix cache."""
    num_blocks: int = 0
    """KV blocks to reserve first; 0 if the sequence holds its blocks already."""
    num_shared: int = 0
    """Number of these that other requests hold."""
    cache: CacheKind = CacheKind.KV
    """Cache of a request that begins."""

    def to_prefill(self) -> Prefill:
        return Prefill(self.seq.request_id, self.num_tokens, self.cache is CacheKind.HIDDEN)


class Resume(NamedTuple):
    """A paused response begins or continues."""

    seq: Sequence
    num_blocks: int
    """Additional blocks, from the lender if there is one, else from the free blocks."""
    lender: Sequence | None = None


class Plan(NamedTuple):
    """The plan is the decision of a batching policy."""

    picks: Many[Pick]
    """Prefills in execution order."""
    decodes: tuple[str, ...]
    """Ids of the requests to decode."""
    reason: str
    resumes: tuple[Resume, ...] = ()
    """The decodes among them that were paused."""
    preempted: Many[Sequence] = ()
    """Running requests that give up their caches first, where the policy chooses them."""
    slack_exhausted: bool = False
    """Whether prompts could begin or continue if the decodes had saved enough time."""
    stands: bool = False
    """The policy tells that it would decide the same decodes, and nothing else, until an
    event that ``standing`` lists, whatever the time."""

    def without(self, preempted: list[Sequence]) -> "Plan":
        """Return the plan without requests that have lost their caches since it was made."""
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
        """Return the batch that carries the plan out."""
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
    """The inputs are the state from which one iteration is decided.

    Deciding changes nothing in it but the clocks that EcoServe starts (``Decoding.start_clocks``).
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
    turn: Turn
    """The decodes of this iteration, for policies that run all that can."""
    decode_s: float
    """Predicted time of a step with these decodes and nothing else, seconds."""
    inflow: Inflow
    """Requests that arrived of late."""
    preempted: Many[Sequence] = ()
    """Sequences that lost their cache in this iteration."""
    cache: EngineCache | None = None
    """The engine's record of its blocks, if it has one."""

    @property
    def decoding(self) -> Decoding:
        return self.running.decoding

    @property
    def rests(self) -> bool:
        """Return whether some response leaves this iteration to others."""
        return len(self.turn.ids) < len(self.decoding)

    @property
    def only_decodes(self) -> bool:
        """Return whether all requests decode that have a seat, and none that waits finds one."""
        return len(self.decoding) == len(self.running) > 0 and not self.may_prefill

    @property
    def may_prefill(self) -> bool:
        """Return whether a prompt is under way, or waits and finds a seat."""
        has_seat = len(self.running) < self.config.max_num_seqs
        return bool(self.running.prefilling) or (bool(self.waiting) and has_seat)

    @property
    def decode_token_s(self) -> float:
        """Return the predicted time per token of steps with the turn's decodes and nothing else,
        seconds."""
        return self.decode_s / self.decoding.speculation.emitted

    def decodes_with(self, resumes: Many[Resume]) -> tuple[str, ...]:
        """Return the ids of all decoding requests, and of the paused ones that go on."""
        return (*self.decoding, *[resume.seq.request_id for resume in resumes])

    def tokens_of(self, num_decodes: int) -> int:
        """Return the tokens of a batch that decodes take: drafted ones are verified with the last
        one."""
        return ceil(num_decodes * (1 + self.decoding.speculation.drafted))

    @property
    def overdue(self) -> bool:
        """Return whether some prompt has waited too long, as measured by its own target."""
        now = self.now
        return self.waiting.overdue_from_s < now or any(
            seq.overdue_from_s < now for seq in self.running.prefilling.values()
        )

    @property
    def starved(self) -> bool:
        """Return whether some prompt has waited too long while no other was prefilled, both as
        measured by its own target."""
        now, begun = self.now, self.running.prefilling.values()

        def no_prefill_within(ttft_s: float) -> bool:
            return self.prefilled_s < now - OVERDUE_TTFTS * ttft_s

        # Few targets tell for a long queue that a prefill was recent.
        targets_s = [self.waiting.min_ttft_s, *[seq.request.slo.ttft_s for seq in begun]]
        return no_prefill_within(min(targets_s)) and any(
            seq.overdue_from_s < now and no_prefill_within(seq.request.slo.ttft_s)
            for seq in chain(begun, self.waiting)
        )

    def is_patient(self, seq: Sequence) -> bool:
        """Return whether a prompt has a longer TTFT target than another request that arrived of
        late."""
        return seq.request.slo.ttft_s > self.inflow.min_ttft_s(self.now)

    def hit(self, seq: Sequence) -> Hit:
        """Return what the prefix cache has of a waiting prompt.

        A sequence that loses its cache in this iteration must not begin again in it, and finds
        nothing. The engine has not taken its blocks yet, so none counts as held by others.
        """
        if self.cache is None:
            return MISS
        if not self.preempted:
            return self.cache.find(seq.request_id)
        if seq in self.preempted:
            return MISS
        return Hit(self.cache.find(seq.request_id).num_tokens)

    def prefill_tokens_within(self, budget_s: float) -> int:
        """Return the most prefill tokens that keep a batch with the turn's decodes within
        ``budget_s``, as predicted."""
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

        num_drafted: drafted tokens that its decodes verify; as many as of late if it is None.
        """
        decoding = self.decoding
        if num_drafted is None:
            num_drafted = len(plan.decodes) * self.decoding.speculation.drafted
        if decoding.are_all(plan.decodes):
            turn = Turn.of_all(decoding)
        else:
            turn = Turn.of(decoding[request_id] for request_id in plan.decodes)
        picks, num_decodes = _prefills(plan.picks), len(plan.decodes)
        context, hidden = turn.num_tokens, turn.num_hidden_tokens
        return self.latency.work(picks, num_decodes, context, hidden, num_drafted)


def _prefills(picks: Many[Pick]) -> list[tuple[int, int]]:
    return [(pick.num_tokens, pick.num_before) for pick in picks]
