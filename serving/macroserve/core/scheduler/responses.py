"""Responses wait for memory of their own, reserved at once for the whole expected length, and may
borrow what others do not need yet (EconoServe, sections 3.2 to 3.4)."""

from collections.abc import Sequence as Many
from math import ceil

from macroserve.core.scheduler.iteration import IterationInputs, Resume
from macroserve.core.scheduler.response_group import ResponseGroup
from macroserve.core.scheduler.sequence import Sequence
from macroserve.core.scheduler.task_order import ClosestFit, by_urgency, is_overdue, place


def granted(inputs: IterationInputs) -> list[Resume]:
    """Return the responses that get memory now: groups in order, each split if it does not fit as a
    whole; then the longest that fit beside them; then those that others lend memory to."""
    blocks, queue = inputs.running.blocks, inputs.running.paused
    if not queue:
        return []
    memory = _Memory(inputs, blocks.free - reserve(inputs))
    left: list[tuple[int, Sequence]] = []
    for group in _groups(inputs):
        # In the order of section 3.4, none begins in sequence after the first that does not fit.
        first, rest = group.split(0 if left and by_urgency(inputs.config.strategy) else memory.free)
        for seq, num_blocks in zip(first.members, first.num_blocks, strict=True):
            memory.grant(seq, num_blocks)
        left += zip(rest.num_blocks, rest.members, strict=True)
    if by_urgency(inputs.config.strategy):
        left = _grant_closest(inputs, memory, left)
    for num_blocks, seq in left:
        memory.borrow(seq, num_blocks)
    resumes = memory.resumes
    if not (resumes or inputs.decoding or inputs.running.prefilling):
        # No response can have all the memory it needs, so one continues with the free blocks.
        for _, seq in left:
            num_blocks = min(max(1, needed(inputs, seq)), blocks.free)
            if seq.num_tokens < blocks.room(seq.request_id, seq.cache, num_more=num_blocks):
                return [Resume(seq, num_blocks)]
    return resumes


def reserve(inputs: IterationInputs) -> int:
    """Return the blocks left to prompts and to responses that outrun their reservation."""
    return int(inputs.config.tuning.kv_reserve * inputs.running.blocks.num_blocks)


def taken_blocks(inputs: IterationInputs, resumes: Many[Resume]) -> int:
    """Return the free blocks that prompts have to leave, given the responses that go on.

    While other responses wait for memory, prompts get only the unused part of the reserve.
    """
    taken = sum([resume.num_blocks for resume in resumes if resume.lender is None])
    if len(resumes) < len(inputs.running.paused):
        resumed = {resume.seq for resume in resumes}
        queued = [seq for seq in inputs.running.paused.values() if seq not in resumed]
        held = sum([inputs.running.blocks.held_by(seq.request_id) for seq in queued])
        taken = max(taken, inputs.running.blocks.free - max(0, reserve(inputs) - held))
    return taken


def needed(inputs: IterationInputs, seq: Sequence) -> int:
    """Return the additional blocks that the expected response needs; 0 if its own blocks are
    enough."""
    expected = ceil((1 + inputs.config.tuning.kv_padding) * seq.num_remaining)
    num_tokens = min(seq.most_tokens, seq.num_tokens + expected)
    return max(0, inputs.running.missing(seq, num_tokens))


def _grant_closest(
    inputs: IterationInputs, memory: "_Memory", left: list[tuple[int, Sequence]]
) -> list[tuple[int, Sequence]]:
    """Grant memory to the longest responses that fit, one after the other; return the others.

    While the first is overdue only those go on that take no block from it.
    """
    is_held = bool(left) and is_overdue(left[0][1], inputs.now)
    most = 0 if is_held else inputs.running.blocks.num_blocks
    by_length = ClosestFit(left)
    rest = {seq: num_blocks for num_blocks, seq in left}
    longest = by_length.take(min(memory.free, most))
    while longest is not None:
        memory.grant(longest, rest.pop(longest))
        longest = by_length.take(min(memory.free, most))
    return [(num_blocks, seq) for seq, num_blocks in rest.items()]


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

    ordered = sorted(queue, key=order) if by_urgency(inputs.config.strategy) else queue
    return ResponseGroup.of(ordered, length, lambda seq: needed(inputs, seq))


class _Memory:
    """The memory is what responses are granted, and what is left of it.

    free: blocks that may be granted; below 0 while prompts have more than their reserve.

    Attributes:
        resumes: the responses that go on.
    """

    def __init__(self, inputs: IterationInputs, free: int) -> None:
        self.free = free
        self.resumes: list[Resume] = []
        self._blocks = blocks = inputs.running.blocks
        # A block of several groups of layers may hold more tokens of the lender than of the
        # borrower.
        lends = inputs.config.strategy.kv_lending and not blocks.is_grouped
        self._lenders = _Lenders(inputs) if lends else None

    def grant(self, seq: Sequence, num_blocks: int) -> None:
        """Grant free blocks; the response may lend them in turn."""
        self.free -= num_blocks
        self.resumes.append(Resume(seq, num_blocks))
        if self._lenders:
            self._lenders.add(seq, num_blocks * self._blocks.slots(seq.cache))

    def borrow(self, seq: Sequence, num_blocks: int) -> None:
        """Let a response go on with the blocks of a lender, if one has as many to spare."""
        if self._lenders and not seq.lender:
            lender = self._lenders.take(seq, num_blocks)
            if lender:
                self.resumes.append(Resume(seq, num_blocks, lender))


class _Lenders:
    """The lenders are responses with slots that they do not need yet."""

    def __init__(self, inputs: IterationInputs) -> None:
        self._free = {seq: seq.num_slots - seq.num_tokens for seq in inputs.decoding.values()}
        self._slots = inputs.running.blocks.slots
        tuning = inputs.config.tuning
        self._length_factor = 1 + tuning.kv_padding + tuning.lending_buffer

    def add(self, seq: Sequence, num_slots: int) -> None:
        self._free[seq] = num_slots

    def take(self, borrower: Sequence, num_blocks: int) -> Sequence | None:
        """Return the lender with the least sufficient room, or None.

        The lender needs the lent blocks only after the borrower is expected to have ended. A block
        holds as many slots of it as its kind of cache takes.
        """
        num_steps = ceil(self._length_factor * borrower.num_remaining)
        lenders = [
            lender
            for lender, num_free in self._free.items()
            if num_free >= num_blocks * self._slots(lender.cache) + num_steps
        ]
        best = min(lenders, key=self._free.__getitem__, default=None)
        if best:
            self._free[best] -= num_blocks * self._slots(best.cache)
        return best
