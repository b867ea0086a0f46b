"""Apt-Serve's adaptive batches over a hybrid cache (sections 4.2 and 5).

The value of a request is the time for which its reader has been waiting; the value of one that has
missed its targets is close to zero, so that it does not make others miss theirs.

A prefill iteration chooses among the waiting requests within the free memory, a decode iteration
among the running ones within the whole pool. A running request cannot change its cache in place:
the paper discards the cache and computes the other kind in a prefill iteration (section 5, end).
The same happens to a request that a decode iteration leaves out. So a decode iteration decides
whose caches are kept, and the next prefill iteration chooses a kind for each of the others: keys
and values come back as hidden states if memory is short.

The paper counts no time for recomputing a cache, so that any gain would discard one. Here that time
is a loss to all requests, like the time to rebuild keys and values in equation 5.
"""

from collections.abc import Iterable
from math import fsum
from typing import NamedTuple

from macroserve.core.scheduler.admission import AdapterSlots, Admission
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.iteration import IterationInputs, Plan
from macroserve.core.scheduler.sequence import Sequence

NEXT_TO_NOTHING = 1e-6
"""Value per second of a late request's wait: the request still goes before an empty seat."""


def aptserve_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Plan prefills or decodes, whichever have waited longer in total (section 5).

    Prefills are chosen by value per memory, and so are decodes when memory runs short.
    Bound: none for requests that become late while memory is short; they are served as others end.
    """
    if inputs.decoding and not _prompts_are_urgent(inputs):
        return _decode(inputs, admission, "decodes have waited longer")
    chosen = chosen_prompts(inputs, admission, inputs.running.blocks.free)
    if picks := admission.pick(inputs.config.max_batch_tokens, whole=True, chosen=chosen):
        return Plan(picks, (), "prompts have waited longer")
    return _decode(inputs, admission, "no prompt to prefill")


def chunked_aptserve_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Plan the decodes of ``aptserve_batch`` and chosen prompts up to the size of the chunk
    (section 6.7). Prompts begin in the remaining memory, unless a cache was discarded."""
    plan = _decode(inputs, admission, "decodes and a chunk of the chosen prompts")
    free = inputs.running.blocks.free
    chosen = {} if plan.preempted else chosen_prompts(inputs, admission, free)
    budget = min(inputs.config.tuning.chunk_tokens, inputs.config.max_batch_tokens)
    picks = admission.pick(budget - inputs.tokens_of(len(plan.decodes)), chosen=chosen)
    return plan._replace(picks=picks)


def _prompts_are_urgent(inputs: IterationInputs) -> bool:
    """Return whether prompts have waited longer in total than decodes. Late ones count in full: the
    fallback of section 4.2 lowers the value of a request, not its pending time."""
    prompts = [*inputs.waiting, *inputs.running.prefilling.values()]
    if not prompts:
        return False
    now, (since_s, _) = inputs.now, inputs.decoding.waits
    waited_s = fsum([now - seq.pending_since_s for seq in prompts])
    return waited_s > fsum([now - each_s for each_s in since_s])


def chosen_prompts(
    inputs: IterationInputs, admission: Admission, num_blocks: int
) -> dict[Sequence, CacheKind]:
    """Choose the waiting requests to begin within ``num_blocks``, by value per memory; not those
    preempted in this iteration or without a slot for their adapter."""
    waiting = list(inputs.waiting)
    if inputs.preempted or inputs.config.max_adapters:
        fit = AdapterSlots(inputs).fit
        waiting = [seq for seq in waiting if seq not in inputs.preempted and fit(seq)]
    pending_s = [inputs.now - seq.pending_since_s for seq in waiting]
    is_late = [inputs.now - seq.pending_since_s > seq.patience_s for seq in waiting]
    blocks = inputs.running.blocks
    needs = admission.reservations(waiting)
    items = KnapsackItems(
        _with_fallback(pending_s, is_late, inputs), needs, [blocks.hidden_blocks(n) for n in needs]
    )
    penalty = _num_requests(inputs) * inputs.latency.rebuild_s(blocks.block_size)
    chosen = choose(items, num_blocks, penalty)
    return {waiting[index]: cache for index, cache in chosen.items()}


def _decode(inputs: IterationInputs, admission: Admission, reason: str) -> Plan:
    """Plan the decodes whose caches are kept, or the begun prompts if there are none."""
    decoding = inputs.decoding
    left_out: list[Sequence] = []
    if decoding.short:
        left_out = _left_out(inputs)
    elif decoding.num_hidden_tokens and not inputs.waiting:
        left_out = _worth_keys_and_values(inputs)
    plan = Plan((), tuple(decoding), reason, preempted=left_out).without(left_out)
    if not plan.decodes:
        begun = admission.pick(inputs.config.max_batch_tokens, whole=True, chosen={})
        return plan._replace(picks=begun)
    return plan


def _left_out(inputs: IterationInputs) -> list[Sequence]:
    """Return the running requests that give up their caches when the pool cannot hold the next
    token of all of them.

    Keeping a cache saves all requests the time to recompute it. Only the present kind of cache is
    considered: computing the smaller kind takes as long and saves less memory than leaving out.
    """
    decoding, running, latency = inputs.decoding, inputs.running, inputs.latency
    since_s, patience_s = decoding.waits
    seqs, num_requests = list(decoding.values()), _num_requests(inputs)
    worths: list[float] = []
    is_late: list[bool] = []
    for index, seq in enumerate(seqs):
        saved_s = _recompute_s(seq, inputs)
        if seq.cache is CacheKind.HIDDEN:
            saved_s -= latency.rebuild_s(seq.num_tokens)
        pending_s = inputs.now - since_s[index]
        worths.append(pending_s + num_requests * saved_s)
        is_late.append(pending_s > patience_s[index])
    held = [running.blocks.held_by(seq.request_id) for seq in seqs]
    missing = [max(0, running.missing(seq, seq.num_tokens + 1)) for seq in seqs]
    needs = [num + more for num, more in zip(held, missing, strict=True)]
    items = KnapsackItems(_with_fallback(worths, is_late, inputs), needs, needs)
    kept = choose(items, running.blocks.free + sum(held), 0.0)
    return [seq for index, seq in enumerate(seqs) if index not in kept]


def _worth_keys_and_values(inputs: IterationInputs) -> list[Sequence]:
    """Return the running request whose hidden states should be replaced by keys and values, if any.

    Rebuilding them in each remaining step must take longer than computing them once, and the memory
    must suffice for all expected tokens. (The caller checks that no waiting request needs it.)
    """
    running, latency = inputs.running, inputs.latency
    free = running.blocks.free - running.blocks.mean_blocks_for(running.num_remaining)
    if free <= 0:
        return []
    hidden = [seq for seq in inputs.decoding.values() if seq.cache is CacheKind.HIDDEN]
    seq = max(hidden, key=lambda seq: seq.num_remaining)
    if running.blocks.blocks_for(seq.num_tokens) > free:
        return []
    rebuild_s = seq.num_remaining * latency.rebuild_s(seq.num_tokens)
    return [seq] if rebuild_s > _recompute_s(seq, inputs) else []


def _num_requests(inputs: IterationInputs) -> int:
    """Return the number of requests that a longer step delays, |W| + |R| in equation 5."""
    return len(inputs.waiting) + len(inputs.running)


def _recompute_s(seq: Sequence, inputs: IterationInputs) -> float:
    """Return the time to recompute a running request's cache, seconds."""
    return inputs.latency.batched_prefill_s(seq.num_tokens, inputs.config.max_batch_tokens)


def _with_fallback(
    worths: list[float], is_late: Iterable[bool], inputs: IterationInputs
) -> list[float]:
    """Return the values, for late requests times the decay factor (sections 4.2 and 6.6)."""
    late_value = max(inputs.config.tuning.late_value, NEXT_TO_NOTHING)
    return [late_value * w if late else w for w, late in zip(worths, is_late, strict=True)]


# -- the hybrid-cache scheduling problem


class KnapsackItems(NamedTuple):
    """Requests that may be chosen, as parallel lists."""

    values: list[float]
    """Value of running the request with a KV cache, seconds."""
    kv_blocks: list[int]
    """Blocks of its KV cache, at least one."""
    hidden_blocks: list[int]
    """Blocks of its hidden cache."""


def choose(items: KnapsackItems, num_blocks: int, penalty: float) -> dict[int, CacheKind]:
    """Return the indices of items with nearly the largest total value within ``num_blocks``, and
    the cache of each (section 5, definition 1).

    This is a 0-1 knapsack in which each item comes in two sizes: its KV cache, or the hidden cache
    of about half that size, which costs all requests the time to rebuild keys and values from it.

    penalty: value lost for each block of KV that is not kept (equation 8).

    The result is the better of the greedy choice by gain per block and the most valuable single
    request plus others that still fit, which is at least half of the optimum. O(n log n), on plain
    lists: compiled, they are faster than arrays for any number of items.
    """
    # Memory is spent on an item's first cache, or to upgrade its hidden cache to a KV cache. An
    # offer is the index of an item for a KV cache, or its complement for a hidden one.
    offers: list[int] = []
    gains: list[float] = []  # per block
    least = num_blocks + 1  # no offer needs less
    alone, most_alone = -1, 0.0
    for index, value in enumerate(items.values):
        whole, half = items.kv_blocks[index], items.hidden_blocks[index]
        fits = whole <= num_blocks
        hidden_value = value - penalty * whole
        # A hidden cache that gains less per block than the KV cache is offered only if the KV
        # cache exceeds all memory.
        if (
            half <= num_blocks
            and half < whole
            and hidden_value > 0
            and (not fits or hidden_value * whole >= value * half)
        ):
            needed, gain = half, hidden_value / half
            offers.append(~index)
            gains.append(gain)
            if fits:
                needed = min(half, whole - half)
                offers.append(index)
                gains.append(min(gain, penalty * whole / (whole - half)))
        elif fits:
            needed = whole
            offers.append(index)
            gains.append(value / whole)
        else:
            continue
        if needed < least:
            least = needed
        value_alone = value if fits else hidden_value
        if value_alone > most_alone:
            alone, most_alone = index, value_alone
    chosen = _greedy(items, offers, gains, num_blocks, least)
    total = 0.0
    for index, cache in chosen.items():
        total += items.values[index]
        if cache is CacheKind.HIDDEN:
            total -= penalty * items.kv_blocks[index]
    if most_alone <= total:
        return chosen
    fits = items.kv_blocks[alone] <= num_blocks
    needed = items.kv_blocks[alone] if fits else items.hidden_blocks[alone]
    others = [place for place, index in enumerate(offers) if index not in (alone, ~alone)]
    offers, gains = [offers[place] for place in others], [gains[place] for place in others]
    beside = _greedy(items, offers, gains, num_blocks - needed, least)
    return {alone: CacheKind.KV if fits else CacheKind.HIDDEN, **beside}


def _greedy(
    items: KnapsackItems, offers: list[int], gains: list[float], num_blocks: int, least: int
) -> dict[int, CacheKind]:
    """Take the offers with the most gain per block until fewer blocks are free than the smallest
    offer needs (``least``)."""
    chosen: dict[int, CacheKind] = {}
    free = num_blocks
    for place in sorted(range(len(gains)), key=gains.__getitem__, reverse=True):
        if free < least:
            break
        index = offers[place]
        if index < 0:
            index, cache = ~index, CacheKind.HIDDEN
            needed = items.hidden_blocks[index]
        else:
            cache, needed = CacheKind.KV, items.kv_blocks[index]
            if index in chosen:  # upgrade its hidden cache to a KV cache
                needed -= items.hidden_blocks[index]
        if needed <= free:
            chosen[index] = cache
            free -= needed
    return chosen
