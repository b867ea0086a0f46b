"""Running sequences, which hold KV blocks and are paused or preempted when blocks run out."""

from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Many
from itertools import chain
from typing import Self

from macroserve.core.scheduler.blocks import BlockGroups, BlockLedger, CacheKind, EngineCache
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.scheduler.decoding import Decoding
from macroserve.core.scheduler.sequence import Sequence, State


class Running:
    """Running sequences by state and id, in order of entry.

    pause_when_full: whether a sequence without a block for its next token keeps its KV and waits
        (EconoServe, section 3.2: offload-free preemption); otherwise the latest arrival gives up
        its KV and is recomputed later (vLLM).
    policy_preempts: whether the batching policy chooses who gives up its KV (Apt-Serve, section 5).
    queue_responses: whether a sequence pauses after its prefill until it is resumed with memory for
        its response, and again if it outgrows that memory.
    num_drafts: configured drafted tokens per decode.
    """

    def __init__(
        self,
        blocks: BlockLedger,
        *,
        pause_when_full: bool,
        policy_preempts: bool = False,
        queue_responses: bool = False,
        num_drafts: int = 0,
    ) -> None:
        self.blocks = blocks
        self.prefilling: dict[str, Sequence] = {}
        self.loading: dict[str, Sequence] = {}
        self.decoding = Decoding(num_drafts)
        self.paused: dict[str, Sequence] = {}
        self.ending: dict[str, Sequence] = {}
        self.adapters: Counter[str | None] = Counter()
        """Number of sequences per adapter; None stands for the base model."""
        self._pause_when_full = pause_when_full
        self._policy_preempts = policy_preempts
        self._queue_responses = queue_responses
        self._prefilled: dict[str, Sequence] = {}
        """Sequences that still hold blocks needed only during their finished prefill."""

    @classmethod
    def of(cls, config: InstanceConfig, cache: EngineCache | None) -> Self:
        """Return an empty collection for an instance."""
        strategy, groups = config.strategy, config.block_groups
        blocks = BlockLedger(
            config.num_blocks,
            config.block_size,
            config.hidden_states_per_block if strategy.keeps_hidden else None,
            cache,
            BlockGroups(groups, config.max_model_len) if groups else None,
            config.num_draft_slots,
            config.max_model_len,
        )
        return cls(
            blocks,
            pause_when_full=strategy.exact_kv,
            policy_preempts=strategy.chooses_decodes,
            queue_responses=strategy.queues_responses,
            num_drafts=config.num_drafts,
        )

    def __len__(self) -> int:
        num_held = len(self.paused) + len(self.ending)
        return len(self.prefilling) + len(self.loading) + len(self.decoding) + num_held

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self._preemptible(), self.loading.values(), self.ending.values())

    @property
    def num_remaining(self) -> int:
        """Return the tokens still expected of all running sequences."""
        num_remaining = self.decoding.num_remaining
        for others in (self.prefilling, self.loading, self.paused):
            if others:
                num_remaining += sum([seq.num_remaining for seq in others.values()])
        return num_remaining

    def admit(
        self,
        seq: Sequence,
        num_blocks: int,
        cache: CacheKind = CacheKind.KV,
        num_shared: int = 0,
    ) -> None:
        """Begin a sequence's prefill with ``num_blocks``, of which others hold ``num_shared``."""
        seq.move(State.PREFILLING)
        seq.cache = cache
        self._enter(seq, num_blocks, num_shared)
        self.prefilling[seq.request_id] = seq

    def prefill(self, prefilled: Mapping[str, int], cached: Mapping[str, int]) -> list[Sequence]:
        """Count prompt tokens computed or found in the prefix cache, by request id; return the
        sequences whose prefill is complete."""
        for request_id, num_tokens in cached.items():
            if seq := self.prefilling.get(request_id):
                seq.count_cached(num_tokens)
        complete: list[Sequence] = []
        for request_id, num_tokens in prefilled.items():
            if seq := self.prefilling.get(request_id):
                seq.num_computed = min(seq.num_computed + num_tokens, seq.num_prompt)
                if seq.num_computed == seq.num_prompt:
                    complete.append(seq)
        return complete

    def load(self, seq: Sequence) -> None:
        """Hold a sequence, with the blocks that the engine writes to, until they are loaded."""
        seq.move(State.LOADING)
        self.loading[seq.request_id] = self.prefilling.pop(seq.request_id)

    def loaded(self, seq: Sequence) -> None:
        """Continue the prefill of a sequence whose blocks have been loaded."""
        seq.move(State.PREFILLING)
        self.prefilling[seq.request_id] = self.loading.pop(seq.request_id)

    def start_decoding(self, seq: Sequence) -> None:
        """End a sequence's prefill: it decodes, or waits to be resumed if responses queue."""
        seq.num_computed = seq.num_prompt
        del self.prefilling[seq.request_id]
        if self.blocks.is_grouped:
            self._prefilled[seq.request_id] = seq
        if self._queue_responses:
            seq.move(State.PAUSED)
            self.paused[seq.request_id] = seq
        else:
            seq.move(State.DECODING)
            self.decoding.add(seq)

    def resume(self, seq: Sequence, num_blocks: int, lender: Sequence | None = None) -> None:
        """Let a paused response decode with ``num_blocks`` more blocks; a lender's are returned
        when the borrower ends or the lender needs them."""
        if lender:
            self.blocks.transfer(lender.request_id, seq.request_id, num_blocks)
            seq.lender, seq.num_borrowed = lender, num_blocks
            lender.borrowers.append(seq)
            self._resize(lender)
        elif num_blocks:
            self.blocks.grant(seq.request_id, num_blocks)
        self._resize(seq)
        self._go_on(seq)

    def complete(self, seq: Sequence) -> None:
        """Hold a decoding or paused sequence until its last token, which is in flight, is out."""
        home = self.paused if seq.state is State.PAUSED else self.decoding
        seq.move(State.ENDING)
        self.ending[seq.request_id] = home.pop(seq.request_id)

    def remove(self, seq: Sequence, to: State) -> None:
        """Release a sequence's KV, at its end or to recompute it."""
        homes: dict[State, dict[str, Sequence] | Decoding] = {
            State.PREFILLING: self.prefilling,
            State.LOADING: self.loading,
            State.DECODING: self.decoding,
            State.PAUSED: self.paused,
            State.ENDING: self.ending,
        }
        home = homes[seq.state]
        seq.move(to)
        home.pop(seq.request_id)
        self._prefilled.pop(seq.request_id, None)
        self._settle_loans(seq)
        self.blocks.release(seq.request_id)
        self.adapters[seq.request.adapter] -= 1

    @property
    def needs_room(self) -> bool:
        """Return whether ``make_room`` has something to do."""
        waits = self.paused and not self._queue_responses
        return bool(self.decoding.needs_slots or waits or self._prefilled)

    def make_room(self, chosen: Many[Sequence] | None = None) -> list[Sequence]:
        """Give each decoding sequence a slot for its next token; return the preempted sequences.

        chosen: sequences that the policy preempts first. None: a policy with ``policy_preempts``
            chooses later; sequences without a slot stay in ``decoding.short``.

        Paused sequences come first, unless they wait to be resumed, then the order of ``decoding``.
        Afterwards some sequence, if any, can run: the earliest arrival is preempted last, and alone
        it fits. Fewer blocks are left than the first preempted sequence needs, so that none begins
        again in the same iteration.

        A late borrower is preempted first (EconoServe, section 3.2). The paper copies its KV to the
        host; here it begins again by loading its prompt's full blocks, which vLLM's connector keeps
        in host memory (``EngineCache.find``).
        """
        self.blocks.read_again()
        for seq in tuple(self._prefilled.values()):
            if self.blocks.give_back(seq.request_id):
                del self._prefilled[seq.request_id]
                self._resize(seq)
        preempted = [self._preempt(seq) for seq in chosen or ()]
        waits_for_policy = self._policy_preempts and chosen is None
        paused = () if self._queue_responses else tuple(self.paused.values())
        for seq in (*paused, *self.decoding.short):
            while seq.state is not State.WAITING and not self._extend(seq):
                if waits_for_policy:
                    break
                borrowers = [b for b in seq.borrowers if b.state is not State.ENDING]
                if borrowers:
                    preempted.append(self._preempt(borrowers[-1]))
                elif self._pause_when_full:
                    self._pause(seq)
                    break
                else:
                    preempted.append(self._preempt_latest())
        while self.paused and not (self.prefilling or self.decoding or self._can_resume()):
            preempted.append(self._preempt_latest())
            if not self._queue_responses:
                for seq in tuple(self.paused.values()):
                    self._extend(seq)
        return preempted

    def _can_resume(self) -> bool:
        """Return whether a sequence that waits to be resumed can get one more slot."""
        free = self.blocks.free
        return self._queue_responses and any(
            self.missing(seq, seq.num_tokens + 1) <= free for seq in self.paused.values()
        )

    def missing(self, seq: Sequence, num_tokens: int) -> int:
        """Return the additional blocks that a sequence needs for ``num_tokens``; at most 0 if it
        has enough."""
        blocks = self.blocks
        if seq.cache is CacheKind.HIDDEN:
            needed = blocks.hidden_blocks(blocks.blocks_for(num_tokens))
            return needed - blocks.held_by(seq.request_id)
        return blocks.missing(seq.request_id, num_tokens)

    def _extend(self, seq: Sequence) -> bool:
        """Give a sequence slots for its next token and let it continue; return False if too few
        blocks are free."""
        missing = self.missing(seq, seq.num_tokens + 1)
        if missing > self.blocks.free:
            return False
        if missing > 0:
            self._grant(seq, missing)
        if seq.state is State.PAUSED:
            self._go_on(seq)
        return True

    def _go_on(self, seq: Sequence) -> None:
        seq.move(State.DECODING)
        self.decoding.add(self.paused.pop(seq.request_id))

    def _enter(self, seq: Sequence, num_blocks: int, num_shared: int = 0) -> None:
        seq.started = True
        self.adapters[seq.request.adapter] += 1
        self._grant(seq, num_blocks, num_shared)

    def _grant(self, seq: Sequence, num_blocks: int, num_shared: int = 0) -> None:
        self.blocks.grant(seq.request_id, num_blocks, num_shared)
        self._resize(seq)

    def _resize(self, seq: Sequence) -> None:
        """Set a sequence's slots to the capacity of its blocks."""
        num_slots = self.blocks.room(seq.request_id, seq.cache)
        if seq.state is State.DECODING:
            self.decoding.resize(seq, num_slots)
        else:
            seq.num_slots = num_slots

    def _settle_loans(self, seq: Sequence) -> None:
        """Return the blocks that a leaving sequence borrowed; its borrowers get its lender."""
        lender = seq.lender
        for borrower in seq.borrowers:
            borrower.lender = lender
            if lender:
                lender.borrowers.append(borrower)
        if lender:
            lent_on = sum([borrower.num_borrowed for borrower in seq.borrowers])
            back = max(0, min(seq.num_borrowed - lent_on, self.blocks.held_by(seq.request_id)))
            self.blocks.transfer(seq.request_id, lender.request_id, back)
            lender.borrowers.remove(seq)
            self._resize(lender)
        seq.borrowers, seq.lender, seq.num_borrowed = [], None, 0

    def _pause(self, seq: Sequence) -> None:
        if seq.state is State.DECODING:
            seq.move(State.PAUSED)
            self.paused[seq.request_id] = self.decoding.pop(seq.request_id)

    def _preemptible(self) -> Iterator[Sequence]:
        return chain(self.prefilling.values(), self.decoding.values(), self.paused.values())

    def _preempt_latest(self) -> Sequence:
        return self._preempt(max(self._preemptible(), key=lambda seq: (seq.arrival_s, seq.ordinal)))

    def _preempt(self, seq: Sequence) -> Sequence:
        self.remove(seq, State.WAITING)
        seq.forget_cache()
        return seq
