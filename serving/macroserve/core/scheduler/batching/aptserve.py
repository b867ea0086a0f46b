"""Apt-Serve composes adaptive batches over a hybrid cache (sections 4.2 and 5).

The value of a request is the time for which its reader has been waiting; the value of one that has
missed its targets is close to zero, so that it does not make others miss theirs.
"""

from itertools import compress
from math import fsum

from macroserve.core.scheduler.adapter_slots import AdapterSlots
from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.batching.knapsack import Items, choose
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.iteration import IterationInputs, Plan
from macroserve.core.scheduler.sequence import Sequence

NEXT_TO_NOTHING = 1e-6
"""Value per second of a late request's wait: the request still goes before an empty seat."""


def aptserve_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Run prefills or decodes, whichever have waited longer in sum; choose prefills by value per
    memory.

    ``Running.make_room`` has reserved the memory of the decodes before, so all of them run.
    Bound: none for a request that becomes late while memory is short; it is served when others end.
    """
    decodes = tuple(inputs.decoding)
    waiting = list(inputs.waiting)
    worths = _worths(*_waits(waiting), inputs)
    if decodes and fsum(worths) <= fsum(_worths(*inputs.decoding.waits, inputs)):
        return Plan((), decodes, "decodes have waited longer")
    chosen = _chosen(waiting, worths, inputs, admission)
    if picks := admission.pick(inputs.config.max_batch_tokens, whole=True, chosen=chosen):
        return Plan(picks, (), "prompts have waited longer")
    return Plan((), decodes, "no prompt to prefill")


def chunked_aptserve_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Run all decodes, and as many of the chosen prompts' tokens as fill the chunk (section
    6.7)."""
    budget = min(inputs.config.tuning.chunk_tokens, inputs.config.max_batch_tokens)
    waiting = list(inputs.waiting)
    chosen = _chosen(waiting, _worths(*_waits(waiting), inputs), inputs, admission)
    picks = admission.pick(budget - inputs.tokens_of(len(inputs.decoding)), chosen=chosen)
    return Plan(picks, tuple(inputs.decoding), "decodes and a chunk of the chosen prompts")


def _waits(seqs: list[Sequence]) -> tuple[list[float], list[float]]:
    """Return the start and the patience of each wait, seconds, like ``Decoding.waits``."""
    return [seq.pending_since_s for seq in seqs], [seq.patience_s for seq in seqs]


def _worths(since_s: list[float], patience_s: list[float], inputs: IterationInputs) -> list[float]:
    """Return the value of one iteration for each request, seconds (the first term of equation 5,
    with the fallback)."""
    now, late_value = inputs.now, max(inputs.config.tuning.late_value, NEXT_TO_NOTHING)
    worths: list[float] = []
    for index, since in enumerate(since_s):
        pending_s = now - since
        worths.append(late_value * pending_s if pending_s > patience_s[index] else pending_s)
    return worths


def _chosen(
    waiting: list[Sequence], worths: list[float], inputs: IterationInputs, admission: Admission
) -> dict[Sequence, CacheKind]:
    """Choose the waiting requests to begin, the most valuable for their memory first.

    A request that was just preempted waits for an iteration, although its hidden cache might fit,
    and one without a slot for its adapter waits for that.
    """
    if inputs.preempted or inputs.config.max_adapters:
        fit = AdapterSlots(inputs).fit
        stays = [seq not in inputs.preempted and fit(seq) for seq in waiting]
        waiting, worths = list(compress(waiting, stays)), list(compress(worths, stays))
    blocks = inputs.running.blocks
    needs = admission.reservations(waiting)
    items = Items(worths, needs, [blocks.hidden_blocks(num) for num in needs])
    num_requests = len(inputs.waiting) + len(inputs.running)
    penalty = num_requests * inputs.latency.rebuild_s(blocks.block_size)
    chosen = choose(items, blocks.free, penalty)
    return {waiting[index]: cache for index, cache in chosen.items()}
