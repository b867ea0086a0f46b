"""One iteration under construction: what a composer chooses from, and its choice."""

from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping
from collections.abc import Sequence as Many
from heapq import merge
from itertools import chain, islice
from math import ceil, inf
from typing import NamedTuple

from macroserve.core.batch import BatchKind
from macroserve.core.latency import LatencyModel, Work
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.config import OVERDUE_TTFTS, InstanceConfig
from macroserve.core.scheduler.estimators import LengthPredictor
from macroserve.core.scheduler.running import Running
from macroserve.core.scheduler.sequence import Sequence, State
from macroserve.core.scheduler.triage import hopeless
from macroserve.core.scheduler.waiting import WaitingQueue
from macroserve.core.status import Phase
from macroserve.core.strategy import HybridCache

KV_PADDING = 0.15
"""Share added to a predicted length when KV is reserved (EconoServe, section 3.2: 10-20 %)."""

ROOMY = 0.7
"""Up to this share of its time and its seats an instance has some to spare."""

RESERVED_TTFTS = 4.0
"""Memory is to spare beside what the requests need that come within so many TTFT targets, as they
would find none in time where those given up hold it: 3 to 6 are as good, less or more is not."""

MOST_RESERVED = 0.5
"""No more than this share of the memory is kept for them: a backlog is to go away again."""


SHORT_MEMORY = 0.5
"""With less than this share of the pool free, memory is short."""


class Pick(NamedTuple):
    """Prompt tokens to prefill; ``num_blocks`` are reserved first, 0 where they are held already.

    cache: what is kept of a request that begins.
    """

    seq: Sequence
    num_tokens: int
    num_blocks: int
    cache: CacheKind = CacheKind.KV


class Resume(NamedTuple):
    """A response that begins or goes on, in so many more blocks: free ones, or the lender's."""

    seq: Sequence
    num_blocks: int
    lender: Sequence | None = None


class Plan(NamedTuple):
    """A batching policy's choice: prefills in execution order, ids to decode, and the reason.

    resumes: those of the decodes that were paused.
    slack_exhausted: prompts could begin or go on if the decodes had saved enough time.
    """

    picks: Many[Pick]
    decodes: tuple[str, ...]
    reason: str
    resumes: tuple[Resume, ...] = ()
    slack_exhausted: bool = False

    @property
    def kind(self) -> BatchKind:
        if self.picks:
            return BatchKind.MIXED if self.decodes else BatchKind.PREFILL
        return BatchKind.DECODE if self.decodes else BatchKind.IDLE


class Step:
    """The sequences that may run at ``now``. Choosing changes nothing here.

    phase, phase_since_s: of the batches before. prefilled_s: when one of them had prefills.
    pace_s: what a token takes each of the decodes, of late.
    inflow_tokens_per_s: of the requests that come. preempted: had to give up their cache just now.
    """

    def __init__(
        self,
        now: float,
        config: InstanceConfig,
        latency: LatencyModel,
        lengths: LengthPredictor,
        waiting: WaitingQueue,
        running: Running,
        *,
        phase: Phase,
        phase_since_s: float,
        prefilled_s: float,
        pace_s: float,
        inflow_tokens_per_s: float,
        preempted: Many[Sequence] = (),
    ) -> None:
        self.now = now
        self.config = config
        self.latency = latency
        self.phase = phase
        self.phase_since_s = phase_since_s
        self.running = running
        self.pace_s = pace_s
        self.preempted = preempted
        self.decoding = running.decoding
        self.decode_s = self.predict(())
        self._lengths = lengths
        self.waiting = waiting
        self._prefilled_s = prefilled_s
        self._inflow_tokens_per_s = inflow_tokens_per_s
        self._hopeless: set[float] | None = None
        self._is_unhurried: bool | None = None

    def predict(self, picks: Many[Pick], *, with_decodes: bool = True) -> float:
        """Seconds that a batch of these prefills would take, beside all decodes or alone."""
        prefills = [(pick.num_tokens, pick.seq.num_computed) for pick in picks]
        if with_decodes:
            work = self.latency.work(
                prefills,
                len(self.decoding),
                self.decoding.num_tokens,
                self.decoding.num_hidden_tokens,
            )
        else:
            work = self.latency.work(prefills)
        return self.latency.predict(work)

    def work(self, plan: Plan) -> Work:
        prefills = [(pick.num_tokens, pick.seq.num_computed) for pick in plan.picks]
        if len(plan.decodes) == len(self.decoding):
            context, hidden = self.decoding.num_tokens, self.decoding.num_hidden_tokens
        else:
            decodes = [self.decoding[request_id] for request_id in plan.decodes]
            context = sum([seq.num_tokens for seq in decodes])
            hidden = sum([seq.num_tokens for seq in decodes if seq.cache is CacheKind.HIDDEN])
        return self.latency.work(prefills, len(plan.decodes), context, hidden)

    def pick(
        self,
        num_tokens: int,
        *,
        whole: bool = False,
        max_num_seqs: int | None = None,
        held_back_blocks: int = 0,
        least_tokens: int = 1,
        chosen: Mapping[Sequence, CacheKind] | None = None,
    ) -> list[Pick]:
        """Prefills of at most ``num_tokens`` in all: begun prompts first, then in queue order, or
        all as triage orders them.

        Only the last may be cut; with ``whole`` it is cut only if it is longer than any batch.
        None begins after the first request that finds no seat among ``max_num_seqs`` or no memory
        beside ``held_back_blocks``: those behind it could keep it out for ever. Nor does one begin
        with a piece of less than ``least_tokens``.
        chosen: of the waiting requests only these begin, in this order and with these caches.
        """
        picks: list[Pick] = []
        seats = (max_num_seqs or self.config.max_num_seqs) - len(self.running)
        blocks = self.running.blocks.free - held_back_blocks
        usual = self._usual_cache
        for seq in self._candidates(seats > 0 and blocks > 0, chosen):
            needed, cache = 0, seq.cache
            if seq.state is State.WAITING:
                cache = chosen[seq] if chosen else usual
                needed = self.reservation(seq)
                if cache is CacheKind.HIDDEN:
                    needed = self.running.blocks.hidden_blocks(needed)
                if not seats or needed > blocks:
                    picks += self._begun(num_tokens, {pick.seq for pick in picks})
                    break
            share = seq.num_to_prefill
            if share > num_tokens:
                least = least_tokens if seq.state is State.WAITING else 1
                if num_tokens < least or (whole and share <= self.config.max_batch_tokens):
                    break
                share = num_tokens
            if seq.state is State.WAITING:
                seats -= 1
                blocks -= needed
            picks.append(Pick(seq, share, needed, cache))
            num_tokens -= share
        return picks

    @property
    def _usual_cache(self) -> CacheKind:
        """Of whoever begins, where nobody chooses for each.

        One that was just preempted waits for an iteration, although its hidden cache might fit.
        """
        blocks, latency = self.running.blocks, self.latency
        num_hidden = blocks.num_blocks * (self.config.hidden_states_per_block or 0)
        if (
            self.config.strategy.hybrid_cache is not HybridCache.CHEAP
            or self.preempted
            or blocks.free >= SHORT_MEMORY * blocks.num_blocks
            or num_hidden <= blocks.num_blocks * blocks.block_size
        ):
            return CacheKind.KV
        step_s = self.decode_s - latency.rebuild_s(self.decoding.num_hidden_tokens)
        is_cheap = latency.rebuild_s(num_hidden) < max(step_s, latency.prefill_s(1))
        return CacheKind.HIDDEN if is_cheap else CacheKind.KV

    def _begun(self, num_tokens: int, others: Container[Sequence]) -> Iterator[Pick]:
        """Prompts that are under way, beside others: they have seats and memory."""
        for seq in self.running.prefilling.values():
            if num_tokens > 0 and seq not in others:
                share = min(num_tokens, seq.num_to_prefill)
                yield Pick(seq, share, 0, seq.cache)
                num_tokens -= share

    @property
    def overdue(self) -> bool:
        """Whether some prompt has waited for too long."""
        limit_s = self.now - OVERDUE_TTFTS * self.config.slo.ttft_s
        oldest_s = self.waiting.oldest_arrival_s()
        return (oldest_s is not None and oldest_s < limit_s) or any(
            seq.arrival_s < limit_s for seq in self.running.prefilling.values()
        )

    @property
    def starved(self) -> bool:
        """Whether some prompt has waited for too long, and no other was prefilled meanwhile."""
        limit_s = self.now - OVERDUE_TTFTS * self.config.slo.ttft_s
        return self._prefilled_s < limit_s and self.overdue

    @property
    def hopeless(self) -> set[float]:
        """What the requests would still cost, begun or not, that are not late yet and that triage
        gives up."""
        if self._hopeless is None:
            self._hopeless = set() if self._unhurried else self._given_up()
        return self._hopeless

    @property
    def _free_at_s(self) -> float:
        """When this step's decodes would be done: no first token comes before that. Whoever is due
        earlier would take a seat, and be late all the same."""
        return self.now + self.decode_s

    def _given_up(self) -> set[float]:
        begun = self.running.prefilling.values()
        first = chain([seq for seq in begun if seq.is_streaming], self.waiting.resumed.seqs)
        free_at_s = self._free_at_s + sum([seq.cost_left_s for seq in first])
        num_late = self.waiting.num_due_before(self.now)
        line = self.waiting.by_deadline
        deadlines_s, starts_s = line.keys[num_late:], line.starts_s[num_late:]
        costs_s = line.costs_s[num_late:]
        for seq in begun:
            if not (seq.is_streaming or seq.is_late(self.now)):
                index = bisect_right(deadlines_s, seq.deadline_s)
                deadlines_s.insert(index, seq.deadline_s)
                starts_s.insert(index, seq.start_by_s)
                costs_s.insert(index, seq.cost_left_s)
        return hopeless(starts_s, costs_s, free_at_s)

    def _candidates(self, admit: bool, order: Iterable[Sequence] | None) -> Iterator[Sequence]:
        begun = self.running.prefilling.values()
        if not admit or not self.waiting:
            return iter(begun)
        if order is not None:
            return chain(begun, order)
        if not self.config.strategy.triage:
            return chain(begun, self.waiting)
        return self._triaged()

    def _triaged(self) -> Iterator[Sequence]:
        """The order under triage, of begun prompts and of those that wait.

        Those whose reader has seen a token; the oldest late one, once the tokens promised to late
        ones cover it; those that can be in time, by deadline, or, while all can in any order, so
        that they wait least for each token. Others have their turn where there is room. So each
        late one is served before 1 / LATE_SHARE times its tokens, and those of the late ones ahead
        of it, have been prefilled.
        """
        now, waiting, lost = self.now, self.waiting, self.hopeless
        num_late = waiting.num_due_before(now)
        prefilling = self.running.prefilling.values()
        begun = sorted(
            [seq for seq in prefilling if not seq.is_streaming], key=lambda seq: seq.deadline_s
        )
        given_up = [seq for seq in begun if seq.is_late(now) or seq.cost_left_s in lost]
        yield from [seq for seq in prefilling if seq.is_streaming]
        yield from waiting.resumed.seqs
        late = chain(given_up, islice(waiting.by_deadline.seqs, num_late))
        turn = next((seq for seq in late if seq.is_late(now)), None)
        if turn and waiting.promised_tokens < turn.num_to_prefill:
            turn = None
        if turn:
            yield turn
        kept = [seq for seq in begun if seq not in given_up]
        if self._unhurried:
            yield from kept
            yield from waiting.by_response_ratio(now)
        else:
            yield from merge(kept, waiting.kept(num_late, lost), key=lambda seq: seq.deadline_s)
        if self._has_room:
            for seq in chain(given_up, waiting.given_up(num_late, lost)):
                if seq is not turn:
                    yield seq

    @property
    def _unhurried(self) -> bool:
        """Whether all are in time in whatever order they are served."""
        if self._is_unhurried is None:
            begun = self.running.prefilling.values()
            cost_s = self.waiting.cost_s + sum([seq.cost_left_s for seq in begun])
            deadlines_s = [*self.waiting.by_deadline.keys[:1], *[seq.deadline_s for seq in begun]]
            self._is_unhurried = self._free_at_s + cost_s <= min(deadlines_s, default=inf)
        return self._is_unhurried

    @property
    def _has_room(self) -> bool:
        """Whether so little of everything is in use that requests which are given up take nothing
        from those to come; or nothing decodes, so that nothing else may go on at all."""
        if not self.decoding:
            return True
        in_use = max(
            self.decode_s / self.decoding.min_tpot_s,
            len(self.running) / self.config.max_num_seqs,
        )
        if in_use > ROOMY:
            return False
        blocks = self.running.blocks
        coming = RESERVED_TTFTS * self.config.slo.ttft_s * self._inflow_tokens_per_s
        return blocks.free >= min(coming / blocks.block_size, MOST_RESERVED * blocks.num_blocks)

    def reservation(self, seq: Sequence) -> int:
        """KV blocks for one: ``reservations``."""
        return self.reservations([seq])[0]

    def reservations(self, seqs: list[Sequence]) -> list[int]:
        """KV blocks for each: for its prompt and a block for its first tokens, or for the whole
        predicted response; for the prompt alone where responses wait for theirs.

        Never more than the response can take, so that what fits the pool is let in when alone.
        """
        strategy, blocks = self.config.strategy, self.running.blocks
        if strategy.queues_responses:
            return [blocks.blocks_for(seq.num_prompt) for seq in seqs]
        more, found = blocks.block_size, []
        for seq in seqs:
            if strategy.exact_kv:
                more = self._padded_response(seq)
            found.append(blocks.blocks_for(min(seq.most_tokens, seq.num_prompt + more)))
        return found

    def _padded_response(self, seq: Sequence) -> int:
        """Tokens that are still expected of it, with ``KV_PADDING``."""
        expected = self._lengths.predict(seq.request, seq.num_emitted) - seq.num_emitted
        return ceil((1 + KV_PADDING) * expected)
