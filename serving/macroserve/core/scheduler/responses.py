"""EconoServe's order of prompts and responses, and the memory of responses (sections 3.2 to 3.4).

A response waits for its own memory, reserved at once for the whole expected length, and may borrow
memory that others do not need yet.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from math import ceil
from typing import NamedTuple

from macroserve.core.scheduler.config import OVERDUE_TTFTS
from macroserve.core.scheduler.iteration import IterationInputs, Resume
from macroserve.core.scheduler.sequence import Sequence
from macroserve.core.strategy import Ordering, Strategy

RANGES_S = (0.2, 0.5, 2.0)
"""Bounds of ranges of equally urgent deadlines, seconds (section 3.4)."""

RANGE_TOKENS = 128
"""Width of a range of occupied memory, within which tasks are ordered by length. The paper gives
this width for ranges of lengths, and none for memory."""

# -- memory


def granted(inputs: IterationInputs) -> list[Resume]:
    """Return the responses that get memory now: groups in order, split if they do not fit; then the
    longest that still fit; then those that can borrow memory."""
    blocks, queue = inputs.running.blocks, inputs.running.paused
    if not queue:
        return []
    memory = _Memory(inputs, blocks.free - reserve(inputs))
    left: list[tuple[int, Sequence]] = []
    for group in _groups(inputs):
        # In the order of section 3.4, no group begins after the first that does not fit.
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
        # None gets all the memory that it needs, so one continues with the free blocks.
        for _, seq in left:
            num_blocks = min(max(1, needed(inputs, seq)), blocks.free)
            if seq.num_tokens < blocks.room(seq.request_id, seq.cache, num_more=num_blocks):
                return [Resume(seq, num_blocks)]
    return resumes


def reserve(inputs: IterationInputs) -> int:
    """Return the blocks reserved for prompts and for responses that outrun their reservation."""
    return int(inputs.config.tuning.kv_reserve * inputs.running.blocks.num_blocks)


def taken_blocks(inputs: IterationInputs, resumes: Many[Resume]) -> int:
    """Return the free blocks that prompts must leave, given the responses that continue: while
    others wait for memory, prompts get only the unused part of the reserve."""
    taken = sum([resume.num_blocks for resume in resumes if resume.lender is None])
    if len(resumes) < len(inputs.running.paused):
        resumed = {resume.seq for resume in resumes}
        queued = [seq for seq in inputs.running.paused.values() if seq not in resumed]
        held = sum([inputs.running.blocks.held_by(seq.request_id) for seq in queued])
        taken = max(taken, inputs.running.blocks.free - max(0, reserve(inputs) - held))
    return taken


def needed(inputs: IterationInputs, seq: Sequence) -> int:
    """Return the additional blocks that the expected response needs; 0 if it has enough."""
    expected = ceil((1 + inputs.config.tuning.kv_padding) * seq.num_remaining)
    num_tokens = min(seq.most_tokens, seq.num_tokens + expected)
    return max(0, inputs.running.missing(seq, num_tokens))


def _grant_closest(
    inputs: IterationInputs, memory: "_Memory", left: list[tuple[int, Sequence]]
) -> list[tuple[int, Sequence]]:
    """Grant memory to the longest responses that fit, one after the other; return the others. While
    the first is overdue, only responses that need no block continue."""
    is_held = bool(left) and is_overdue(left[0][1], inputs.now)
    most = 0 if is_held else inputs.running.blocks.num_blocks
    by_length = ClosestFit(left)
    rest = {seq: num_blocks for num_blocks, seq in left}
    longest = by_length.take(min(memory.free, most))
    while longest is not None:
        memory.grant(longest, rest.pop(longest))
        longest = by_length.take(min(memory.free, most))
    return [(num_blocks, seq) for seq, num_blocks in rest.items()]


def _groups(inputs: IterationInputs) -> "list[ResponseGroup]":
    """Return the queued responses in groups, in the order of section 3.4.

    The paper groups by predicted length. Memory is reserved in blocks, so here a group contains
    responses expected to take the same number of blocks, or one without ``group_by_length``.
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
    """Memory granted to responses; ``free`` blocks may still be granted (below 0 while prompts
    exceed their reserve)."""

    def __init__(self, inputs: IterationInputs, free: int) -> None:
        self.free = free
        self.resumes: list[Resume] = []
        self._blocks = blocks = inputs.running.blocks
        # With several groups of layers, lender and borrower may differ in tokens per block.
        lends = inputs.config.strategy.kv_lending and not blocks.is_grouped
        self._lenders = _Lenders(inputs) if lends else None

    def grant(self, seq: Sequence, num_blocks: int) -> None:
        """Grant free blocks, which the response may lend in turn."""
        self.free -= num_blocks
        self.resumes.append(Resume(seq, num_blocks))
        if self._lenders:
            self._lenders.add(seq, num_blocks * self._blocks.slots(seq.cache))

    def borrow(self, seq: Sequence, num_blocks: int) -> None:
        """Let a response continue with blocks of a lender, if one has enough to spare."""
        if self._lenders and not seq.lender:
            lender = self._lenders.take(seq, num_blocks)
            if lender:
                self.resumes.append(Resume(seq, num_blocks, lender))


class _Lenders:
    """Responses with slots that they do not need yet."""

    def __init__(self, inputs: IterationInputs) -> None:
        self._free = {seq: seq.num_slots - seq.num_tokens for seq in inputs.decoding.values()}
        self._slots = inputs.running.blocks.slots
        tuning = inputs.config.tuning
        self._length_factor = 1 + tuning.kv_padding + tuning.lending_buffer

    def add(self, seq: Sequence, num_slots: int) -> None:
        self._free[seq] = num_slots

    def take(self, borrower: Sequence, num_blocks: int) -> Sequence | None:
        """Return the lender with the least sufficient room, or None: it must not need the blocks
        until the borrower is expected to have ended."""
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


# -- groups


class ResponseGroup(NamedTuple):
    """Responses that are expected to end together and that EconoServe admits at once.

    They start in the same step, decode together without a decision in between (``repeated_plan``),
    and use up the memory for their expected length together (section 3.3.2). A member that runs
    longer takes blocks of the reserve; if there are none it pauses and joins another group.
    """

    members: tuple[Sequence, ...]
    """The responses, most urgent first."""
    num_blocks: tuple[int, ...]
    """Additional blocks that each needs."""

    @staticmethod
    def of(
        queue: Iterable[Sequence],
        length: Callable[[Sequence], int],
        needed: Callable[[Sequence], int],
    ) -> list["ResponseGroup"]:
        """Return the groups of a queue in the order of their first members.

        length: returns the length by which a response is grouped.
        needed: returns the additional blocks that a response needs.
        """
        found: dict[int, list[Sequence]] = {}
        for seq in queue:
            found.setdefault(length(seq), []).append(seq)
        return [ResponseGroup(tuple(group), tuple(map(needed, group))) for group in found.values()]

    def split(self, num_free: int) -> tuple["ResponseGroup", "ResponseGroup"]:
        """Return the first members that fit into ``num_free`` blocks, and the rest: "If the KVC's
        available space cannot accommodate an entire group, the group is split to fit" (section
        3.3.1)."""
        num_fit = 0
        for num_blocks in self.num_blocks:
            num_free -= num_blocks
            if num_free < 0:
                break
            num_fit += 1
        parts = slice(num_fit), slice(num_fit, None)
        first, rest = (ResponseGroup(self.members[p], self.num_blocks[p]) for p in parts)
        return first, rest


# -- order of tasks


def by_urgency(strategy: Strategy) -> bool:
    """Return whether queued tasks are ordered by the factors of section 3.4, not by arrival."""
    return strategy.ordering is Ordering.EDF


def jct_target_s(seq: Sequence) -> float:
    """Return the target for the time from a request's arrival to its last token, seconds.

    In the paper this is SLO-scale x (t_p + t_g x l_g), with the mean times of a prompt and of a
    token and the response's length (section 4.1). The TTFT and TPOT targets are these times with
    their scale; the length is the predicted one.
    """
    return seq.request.slo.ttft_s + seq.tpot_s * seq.predicted_tokens


def place(seq: Sequence, num_held: int, length: int, now: float) -> tuple[int, int, int, int]:
    """Return the sort key of a queued prompt or response: the deadline of the whole response, the
    memory that it occupies and its length (section 3.4). Overdue tasks come first.

    num_held: tokens that its memory can hold.
    length: tokens of the prompt, or those still expected of the response.
    """
    left_s = seq.arrival_s + jct_target_s(seq) - now
    urgency = -1 if is_overdue(seq, now) else bisect_right(RANGES_S, left_s)
    return urgency, -(num_held // RANGE_TOKENS), -length, seq.ordinal


def is_overdue(seq: Sequence, now: float) -> bool:
    """Return whether a task has waited for twice its target, after which no other may overtake it.

    The paper has no such bound, without which long tasks starve while shorter ones arrive.
    """
    return now - seq.arrival_s > OVERDUE_TTFTS * jct_target_s(seq)


class ClosestFit:
    """Pairs of size and task, to find the longest that fits by binary search (section 3.4)."""

    def __init__(self, tasks: Iterable[tuple[int, Sequence]]) -> None:
        entries = [(size, -index, seq) for index, (size, seq) in enumerate(tasks)]
        entries.sort()
        self._sizes = [size for size, _, _ in entries]
        self._seqs = [seq for _, _, seq in entries]

    def take(self, limit: int) -> Sequence | None:
        """Remove and return the longest task of at most ``limit``, the first among equals; or
        None."""
        index = bisect_right(self._sizes, limit) - 1
        if index < 0:
            return None
        del self._sizes[index]
        return self._seqs.pop(index)
