"""EconoServe's batches: responses fill the memory, prompts the compute (section 3).

After its prefill, a response waits for its own memory, reserved at once for the whole expected
length. The unused part may be lent to another response that ends earlier (KV pipelining).
"""

from itertools import islice

from macroserve.core.scheduler.admission import AdapterSlots, Admission
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.iteration import IterationInputs, Pick, Plan, Resume
from macroserve.core.scheduler.responses import (
    ClosestFit,
    by_urgency,
    granted,
    is_overdue,
    needed,
    place,
    reserve,
    taken_blocks,
)
from macroserve.core.scheduler.sequence import Sequence

MAX_SORTED = 256
"""Maximum number of prompts considered, those with the nearest deadlines."""


def econoserve_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Plan all responses that have memory, and prompts up to the target forward size.

    Bound: nothing overtakes a response or prompt that has waited twice its target
    (``is_overdue``), so that it begins once enough others have ended.
    """
    resumes = granted(inputs)
    decodes = inputs.decodes_with(resumes)
    budget = min(inputs.config.tuning.chunk_tokens, inputs.config.max_batch_tokens)
    budget -= inputs.tokens_of(len(decodes))
    taken = taken_blocks(inputs, resumes)
    chosen = _prompts(inputs, admission, budget, inputs.running.blocks.free - taken)
    picks = admission.pick(budget, held_back_blocks=taken, chosen=chosen)
    reason = "responses that have memory, and prompts beside them"
    repeatable = _is_repeatable(inputs, admission, picks, resumes, budget, taken)
    return Plan(picks, decodes, reason, tuple(resumes), repeatable=repeatable)


def _is_repeatable(
    inputs: IterationInputs,
    admission: Admission,
    picks: list[Pick],
    resumes: list[Resume],
    budget: int,
    taken: int,
) -> bool:
    """Return whether no prompt and no response could begin in later steps either.

    Lenders only fill their memory, so a response without a lender finds none later. With a prefix
    cache, hits may change, so the plan is repeatable only if no prompt was considered.
    """
    running = inputs.running
    if picks or resumes or not inputs.decoding:
        return False
    free = running.blocks.free - reserve(inputs)
    if any(needed(inputs, seq) <= free for seq in running.paused.values()):
        return False
    left, is_full = running.blocks.free - taken, len(running) >= inputs.config.max_num_seqs
    if budget <= 0 or left <= 0 or is_full or not inputs.waiting:
        return True
    # The kind of cache that a prompt would begin with may change while the plan is repeated.
    fits = any(
        admission.reservation(seq, cache) <= left for seq in inputs.waiting for cache in CacheKind
    )
    return inputs.cache is None and not fits


def _prompts(
    inputs: IterationInputs, admission: Admission, num_tokens: int, num_blocks: int
) -> dict[Sequence, CacheKind]:
    """Return the prompts to begin, in the order of section 3.4, except those just preempted.

    They must fit the tokens and blocks that begun prompts leave; if nothing is left, all are
    returned in order, in case a begun prompt cannot continue.
    """
    begun = inputs.running.prefilling.values()
    num_tokens -= sum([seq.num_to_prefill for seq in begun])
    slots, preempted = AdapterSlots(inputs), inputs.preempted
    fit = (seq for seq in inputs.waiting if seq not in preempted and slots.fit(seq))
    first = list(islice(fit, len(inputs.waiting.resumed) + MAX_SORTED))
    if by_urgency(inputs.config.strategy):
        # Requests whose reader has seen a token go first, as in all strategies.
        first.sort(
            key=lambda seq: (not seq.is_streaming, place(seq, 0, seq.num_prompt, inputs.now))
        )
        if num_tokens > 0 and num_blocks > 0:
            first = _closest(inputs, admission, first, num_tokens, num_blocks)
    return dict.fromkeys(first, admission.default_cache)


def _closest(
    inputs: IterationInputs,
    admission: Admission,
    queue: list[Sequence],
    num_tokens: int,
    num_blocks: int,
) -> list[Sequence]:
    """Return prompts of the queue in order while they fit, then the longest that fit.

    The first one too long for the tokens left is cut and becomes the last of the batch, after
    prompts that fit whole, unless it is the first of all.
    """
    chosen: list[Sequence] = []
    cut: Sequence | None = None
    cache = admission.default_cache

    def blocks_of(seq: Sequence) -> int:
        return admission.reservation(seq, cache) - inputs.hit(seq).num_held_blocks

    coming = iter(queue)
    for seq in coming:
        num_needed = blocks_of(seq)
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
            num_needed = blocks_of(longest)
            if num_needed <= num_blocks:
                chosen.append(longest)
                num_tokens -= longest.num_to_prefill
                num_blocks -= num_needed
            longest = by_length.take(num_tokens)
        if cut is None and num_tokens > 0:
            later = (seq for seq in rest if seq not in chosen and blocks_of(seq) <= num_blocks)
            cut = next(later, None)
    return chosen if cut is None else [*chosen, cut]
