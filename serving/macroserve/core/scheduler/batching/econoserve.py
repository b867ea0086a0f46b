"""EconoServe fills the memory with responses and the compute with prompts (section 3).

Prompts wait for their prefill. Responses with a computed prompt wait for memory of their own, which
is reserved at once for the whole expected length. While a response fills its memory, the unused
part may be lent to another that ends before (KV pipelining).
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import chain, islice
from math import ceil

from macroserve.core.scheduler.adapter_slots import AdapterSlots
from macroserve.core.scheduler.admission import KV_PADDING, Admission
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.iteration import IterationInputs, Plan, Resume
from macroserve.core.scheduler.sequence import Sequence
from macroserve.core.strategy import Ordering

RESERVED_SHARE = 0.03
"""Share of all blocks left to prompts and to responses that outrun their reservation (section
3.2)."""

BUFFER = 0.15
"""Share of its length by which a borrower has to end before its lender needs the memory (section
4.1)."""

RANGES_S = (0.2, 0.5, 2.0)
"""Bounds in seconds; deadlines between two of them are equally urgent (section 3.4)."""

MAX_SORTED = 256
"""Maximum number of prompts considered, those with the nearest deadlines."""


def econoserve_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Run all responses that have memory, and prompts up to the target forward size.

    Bound: the response that is longest overdue comes first, and waits until others end.
    """
    resumes = _responses(inputs)
    decodes = (*inputs.decoding, *[resume.seq.request_id for resume in resumes])
    budget = min(inputs.config.chunk_tokens, inputs.config.max_batch_tokens)
    budget -= inputs.tokens_of(len(decodes))
    taken = sum([resume.num_blocks for resume in resumes if resume.lender is None])
    if len(resumes) < len(inputs.running.paused):
        # Other responses wait for memory, so prompts get only the unused part of the reserve.
        resumed = {resume.seq for resume in resumes}
        queued = [seq for seq in inputs.running.paused.values() if seq not in resumed]
        held = sum([inputs.running.blocks.held_by(seq.request_id) for seq in queued])
        taken = max(taken, inputs.running.blocks.free - max(0, _reserved(inputs) - held))
    picks = admission.pick(budget, held_back_blocks=taken, chosen=_prompts(inputs))
    reason = "responses that have memory, and prompts beside them"
    return Plan(picks, decodes, reason, tuple(resumes))


def _reserved(inputs: IterationInputs) -> int:
    return int(RESERVED_SHARE * inputs.running.blocks.num_blocks)


def _prompts(inputs: IterationInputs) -> dict[Sequence, CacheKind]:
    """Return the most urgent prompts by deadline, among equally urgent ones the longest first.

    A request that was just preempted waits for an iteration.
    """
    slots, preempted = AdapterSlots(inputs), inputs.preempted
    fit = (seq for seq in inputs.waiting if seq not in preempted and slots.fit(seq))
    first = list(islice(fit, len(inputs.waiting.resumed) + MAX_SORTED))
    if _by_urgency(inputs):
        first.sort(key=lambda seq: (_range(seq.deadline_s - inputs.now), -seq.num_prompt))
    return dict.fromkeys(first, CacheKind.KV)


def _responses(inputs: IterationInputs) -> list[Resume]:
    """Return the responses that get memory now."""
    blocks, queue = inputs.running.blocks, list(inputs.running.paused.values())
    if not queue:
        return []
    free = blocks.free - _reserved(inputs)
    # A block of several groups may hold more tokens of the lender than of the borrower.
    lends = inputs.config.strategy.kv_lending and not blocks.is_grouped
    lenders = _Lenders(inputs.decoding.values()) if lends else None
    resumes: list[Resume] = []
    for seq in _in_order(inputs, queue):
        num_blocks = _needed(inputs, seq)
        if num_blocks <= free:
            free -= num_blocks
            resumes.append(Resume(seq, num_blocks))
            if lenders:
                lenders.add(seq, num_blocks * blocks.block_size)
        elif (
            lenders
            and not seq.lender
            and (lender := lenders.take(seq, num_blocks * blocks.block_size))
        ):
            resumes.append(Resume(seq, num_blocks, lender))
    if not (resumes or inputs.decoding or inputs.running.prefilling):
        # No response can have all the memory it needs, so one continues with the free blocks.
        for seq in _in_order(inputs, queue):
            num_blocks = min(max(1, _needed(inputs, seq)), blocks.free)
            if seq.num_tokens < blocks.room(seq.request_id, num_more=num_blocks):
                return [Resume(seq, num_blocks)]
    return resumes


def _needed(inputs: IterationInputs, seq: Sequence) -> int:
    """Return the additional blocks that the expected response needs; 0 if its own blocks are
    enough."""
    blocks, expected = inputs.running.blocks, ceil((1 + KV_PADDING) * seq.num_remaining)
    num_tokens = min(seq.most_tokens, seq.num_tokens + expected)
    return max(0, blocks.missing(seq.request_id, num_tokens))


def _in_order(inputs: IterationInputs, queue: Iterable[Sequence]) -> Iterable[Sequence]:
    """Return the queue by urgency: nearest deadline, then most memory held, then longest (section
    3.4). With ``group_by_length``, responses that end together go together (section 3.1)."""
    blocks = inputs.running.blocks

    def place(seq: Sequence) -> tuple[int, int, int, int]:
        left_s = seq.deadline_s + seq.predicted_tokens * seq.tpot_s - inputs.now
        held = blocks.held_by(seq.request_id)
        return _range(left_s), -held, -seq.num_remaining, seq.ordinal

    if _by_urgency(inputs):
        queue = sorted(queue, key=place)
    if not inputs.config.strategy.group_by_length:
        return queue
    groups: dict[int, list[Sequence]] = {}
    for seq in queue:
        groups.setdefault(blocks.blocks_for(seq.num_remaining), []).append(seq)
    return chain.from_iterable(groups.values())


def _by_urgency(inputs: IterationInputs) -> bool:
    return inputs.config.strategy.ordering is Ordering.EDF


def _range(left_s: float) -> int:
    return bisect_right(RANGES_S, left_s)


class _Lenders:
    """The lenders are responses with slots that they do not need yet."""

    def __init__(self, decoding: Iterable[Sequence]) -> None:
        self._free = {seq: seq.num_slots - seq.num_tokens for seq in decoding}

    def add(self, seq: Sequence, num_slots: int) -> None:
        self._free[seq] = num_slots

    def take(self, borrower: Sequence, num_slots: int) -> Sequence | None:
        """Return the lender with the least sufficient room, or None.

        The lender needs the lent blocks only after the borrower is expected to have ended.
        """
        num_steps = ceil((1 + KV_PADDING + BUFFER) * borrower.num_remaining)
        needed = num_slots + num_steps
        lenders = [lender for lender, num_free in self._free.items() if num_free >= needed]
        best = min(lenders, key=self._free.__getitem__, default=None)
        if best:
            self._free[best] -= num_slots
        return best
