"""EconoServe fills the memory with responses and the compute with prompts (section 3).

Prompts wait for their prefill. Responses with a computed prompt wait for memory of their own, which
is reserved at once for the whole expected length. While a response fills its memory, the unused
part may be lent to another that ends before (KV pipelining).
"""

from itertools import islice
from math import ceil

from macroserve.core.scheduler.adapter_slots import AdapterSlots
from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.iteration import IterationInputs, Pick, Plan, Resume
from macroserve.core.scheduler.response_group import ResponseGroup
from macroserve.core.scheduler.sequence import Sequence
from macroserve.core.scheduler.task_order import ClosestFit, is_overdue, place
from macroserve.core.strategy import Ordering

MAX_SORTED = 256
"""Maximum number of prompts considered, those with the nearest deadlines."""


def econoserve_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Run all responses that have memory, and prompts up to the target forward size.

    Bound: no response and no prompt passes one that has taken twice its target (``is_overdue``), so
    that it begins once enough others have ended.
    """
    resumes = _responses(inputs)
    decodes = (*inputs.decoding, *[resume.seq.request_id for resume in resumes])
    budget = min(inputs.config.tuning.chunk_tokens, inputs.config.max_batch_tokens)
    budget -= inputs.tokens_of(len(decodes))
    taken = sum([resume.num_blocks for resume in resumes if resume.lender is None])
    if len(resumes) < len(inputs.running.paused):
        # Other responses wait for memory, so prompts get only the unused part of the reserve.
        resumed = {resume.seq for resume in resumes}
        queued = [seq for seq in inputs.running.paused.values() if seq not in resumed]
        held = sum([inputs.running.blocks.held_by(seq.request_id) for seq in queued])
        taken = max(taken, inputs.running.blocks.free - max(0, _reserved(inputs) - held))
    chosen = _prompts(inputs, admission, budget, inputs.running.blocks.free - taken)
    picks = admission.pick(budget, held_back_blocks=taken, chosen=chosen)
    reason = "responses that have memory, and prompts beside them"
    stands = _stands(inputs, admission, picks, resumes, budget, taken)
    return Plan(picks, decodes, reason, tuple(resumes), stands=stands)


def _stands(
    inputs: IterationInputs,
    admission: Admission,
    picks: list[Pick],
    resumes: list[Resume],
    budget: int,
    taken: int,
) -> bool:
    """Return whether no prompt and no response could begin in later steps either.

    A response that no lender has room for finds none later, as lenders only fill their memory. What
    the prefix cache has of a prompt may change, so that only prompts that were not looked at count
    as unable to begin if there is one.
    """
    running = inputs.running
    if picks or resumes or not inputs.decoding:
        return False
    free = running.blocks.free - _reserved(inputs)
    if any(_needed(inputs, seq) <= free for seq in running.paused.values()):
        return False
    left, is_full = running.blocks.free - taken, len(running) >= inputs.config.max_num_seqs
    if budget <= 0 or left <= 0 or is_full or not inputs.waiting:
        return True
    fits = any(admission.reservations([seq])[0] <= left for seq in inputs.waiting)
    return inputs.cache is None and not fits


def _reserved(inputs: IterationInputs) -> int:
    return int(inputs.config.tuning.kv_reserve * inputs.running.blocks.num_blocks)


def _prompts(
    inputs: IterationInputs, admission: Admission, num_tokens: int, num_blocks: int
) -> dict[Sequence, CacheKind]:
    """Return the prompts to begin, in order.

    They are in the order of section 3.4, those that fit ``num_tokens`` and ``num_blocks`` beside
    the prompts under way. Those alone occupy memory, and go first; where they leave nothing, the
    order alone counts, for an iteration in which one of them cannot go on.
    A request that was just preempted waits for an iteration.
    """
    begun = inputs.running.prefilling.values()
    num_tokens -= sum([seq.num_to_prefill for seq in begun])
    slots, preempted = AdapterSlots(inputs), inputs.preempted
    fit = (seq for seq in inputs.waiting if seq not in preempted and slots.fit(seq))
    first = list(islice(fit, len(inputs.waiting.resumed) + MAX_SORTED))
    if _by_urgency(inputs):
        # A reader who has seen a token goes first, as everywhere.
        first.sort(
            key=lambda seq: (not seq.is_streaming, place(seq, 0, seq.num_prompt, inputs.now))
        )
        if num_tokens > 0 and num_blocks > 0:
            first = _closest(inputs, admission, first, num_tokens, num_blocks)
    return dict.fromkeys(first, CacheKind.KV)


def _closest(
    inputs: IterationInputs,
    admission: Admission,
    queue: list[Sequence],
    num_tokens: int,
    num_blocks: int,
) -> list[Sequence]:
    """Return prompts of the queue, in order while they fit, and then the longest that fit.

    The first that is too long for the tokens left is cut, and so the last one of the batch. Prompts
    that fit whole go before it, unless it is the first of all.
    """
    chosen: list[Sequence] = []
    cut: Sequence | None = None

    def needed(seq: Sequence) -> int:
        return admission.reservations([seq])[0] - inputs.hit(seq).num_held_blocks

    coming = iter(queue)
    for seq in coming:
        num_needed = needed(seq)
        if num_needed > num_blocks:
            break
        num_blocks -= num_needed
        num_left = seq.num_prompt - inputs.hit(seq).num_tokens
        if num_left > num_tokens:
            cut = seq
            break
        chosen.append(seq)
        num_tokens -= num_left
    rest = list(coming)
    is_first = cut and not (chosen or inputs.running.prefilling)
    is_held = len(chosen) < len(queue) and is_overdue(queue[len(chosen)], inputs.now)
    if not (is_first or is_held):
        by_length = ClosestFit((seq.num_to_prefill, seq) for seq in rest)
        longest = by_length.take(num_tokens)
        while longest is not None and num_blocks > 0:
            num_needed = needed(longest)
            if num_needed <= num_blocks:
                chosen.append(longest)
                num_tokens -= longest.num_to_prefill
                num_blocks -= num_needed
            longest = by_length.take(num_tokens)
        if cut is None and num_tokens > 0:
            later = (seq for seq in rest if seq not in chosen and needed(seq) <= num_blocks)
            cut = next(later, None)
    return chosen if cut is None else [*chosen, cut]


def _responses(inputs: IterationInputs) -> list[Resume]:
    """Return the responses that get memory now: groups in order, each split if it does not fit as a
    whole; then the longest that fit beside them; then those that others lend memory to."""
    blocks, queue = inputs.running.blocks, inputs.running.paused
    if not queue:
        return []
    memory = _Memory(inputs, blocks.free - _reserved(inputs))
    left: list[tuple[int, Sequence]] = []
    for group in _groups(inputs):
        # In the order of section 3.4, none begins in sequence after the first that does not fit.
        first, rest = group.split(0 if left and _by_urgency(inputs) else memory.free)
        for seq, num_blocks in zip(first.members, first.num_blocks, strict=True):
            memory.grant(seq, num_blocks)
        left += zip(rest.num_blocks, rest.members, strict=True)
    if _by_urgency(inputs):
        left = _grant_closest(inputs, memory, left)
    for num_blocks, seq in left:
        memory.borrow(seq, num_blocks)
    resumes = memory.resumes
    if not (resumes or inputs.decoding or inputs.running.prefilling):
        # No response can have all the memory it needs, so one continues with the free blocks.
        for _, seq in left:
            num_blocks = min(max(1, _needed(inputs, seq)), blocks.free)
            if seq.num_tokens < blocks.room(seq.request_id, num_more=num_blocks):
                return [Resume(seq, num_blocks)]
    return resumes


def _grant_closest(
    inputs: IterationInputs, memory: "_Memory", left: list[tuple[int, Sequence]]
) -> list[tuple[int, Sequence]]:
    """Grant memory to the longest responses that fit, one after the other; return the others.

    While the first is overdue only those go on that take no block from it.
    """
    is_held = bool(left) and is_overdue(left[0][1], inputs.now)
    most = 0 if is_held else inputs.running.blocks.num_blocks
    by_length = ClosestFit(left)
    needed = {seq: num_blocks for num_blocks, seq in left}
    longest = by_length.take(min(memory.free, most))
    while longest is not None:
        memory.grant(longest, needed.pop(longest))
        longest = by_length.take(min(memory.free, most))
    return [(num_blocks, seq) for seq, num_blocks in needed.items()]


def _needed(inputs: IterationInputs, seq: Sequence) -> int:
    """Return the additional blocks that the expected response needs; 0 if its own blocks are
    enough."""
    blocks, expected = (
        inputs.running.blocks,
        ceil((1 + inputs.config.tuning.kv_padding) * seq.num_remaining),
    )
    num_tokens = min(seq.most_tokens, seq.num_tokens + expected)
    return max(0, blocks.missing(seq.request_id, num_tokens))


def _groups(inputs: IterationInputs) -> list[ResponseGroup]:
    """Return the queued responses in groups, in the order of section 3.4.

    The paper groups by the predicted length. Memory is reserved in blocks, and so responses that
    are expected to take as many blocks are of one length here. Without ``group_by_length`` each is
    a group of its own.
    """
    blocks, queue = inputs.running.blocks, inputs.running.paused.values()
    num_tokens = blocks.block_size

    def order(seq: Sequence) -> tuple[int, int, int, int]:
        held = num_tokens * blocks.held_by(seq.request_id)
        return place(seq, held, seq.num_remaining, inputs.now)

    def length(seq: Sequence) -> int:
        if inputs.config.strategy.group_by_length:
            return blocks.blocks_for(seq.num_remaining)
        return seq.ordinal

    ordered = sorted(queue, key=order) if _by_urgency(inputs) else queue
    return ResponseGroup.of(ordered, length, lambda seq: _needed(inputs, seq))


def _by_urgency(inputs: IterationInputs) -> bool:
    return inputs.config.strategy.ordering is Ordering.EDF


class _Memory:
    """The memory is what responses are granted, and what is left of it.

    free: blocks that may be granted; below 0 while prompts have more than their reserve.

    Attributes:
        resumes: the responses that go on.
    """

    def __init__(self, inputs: IterationInputs, free: int) -> None:
        self.free = free
        self.resumes: list[Resume] = []
        blocks = inputs.running.blocks
        self._block_size = blocks.block_size
        # A block of several groups of layers may hold more tokens of the lender than of the
        # borrower.
        lends = inputs.config.strategy.kv_lending and not blocks.is_grouped
        self._lenders = _Lenders(inputs) if lends else None

    def grant(self, seq: Sequence, num_blocks: int) -> None:
        """Grant free blocks; the response may lend them in turn."""
        self.free -= num_blocks
        self.resumes.append(Resume(seq, num_blocks))
        if self._lenders:
            self._lenders.add(seq, num_blocks * self._block_size)

    def borrow(self, seq: Sequence, num_blocks: int) -> None:
        """Let a response go on with the blocks of a lender, if one has as many to spare."""
        if self._lenders and not seq.lender:
            lender = self._lenders.take(seq, num_blocks * self._block_size)
            if lender:
                self.resumes.append(Resume(seq, num_blocks, lender))


class _Lenders:
    """The lenders are responses with slots that they do not need yet."""

    def __init__(self, inputs: IterationInputs) -> None:
        self._free = {seq: seq.num_slots - seq.num_tokens for seq in inputs.decoding.values()}
        tuning = inputs.config.tuning
        self._length_factor = 1 + tuning.kv_padding + tuning.lending_buffer

    def add(self, seq: Sequence, num_slots: int) -> None:
        self._free[seq] = num_slots

    def take(self, borrower: Sequence, num_slots: int) -> Sequence | None:
        """Return the lender with the least sufficient room, or None.

        The lender needs the lent blocks only after the borrower is expected to have ended.
        """
        num_steps = ceil(self._length_factor * borrower.num_remaining)
        needed = num_slots + num_steps
        lenders = [lender for lender, num_free in self._free.items() if num_free >= needed]
        best = min(lenders, key=self._free.__getitem__, default=None)
        if best:
            self._free[best] -= num_slots
        return best
