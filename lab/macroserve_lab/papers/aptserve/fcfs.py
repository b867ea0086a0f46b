"""Apt-Serve's caches in order of arrival (table 5)."""

from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.iteration import IterationInputs, Plan
from macroserve.core.scheduler.sequence import Sequence


def fcfs_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Run whole prompts before decodes and in order of arrival, as the paper's vLLM does, with
    Apt-Serve's caches: hidden states where keys and values do not fit (section 6.5, table 5)."""
    free, chosen = inputs.running.blocks.free, dict[Sequence, CacheKind]()
    waiting = () if inputs.preempted else tuple(inputs.waiting)
    for seq in waiting:
        needs = {cache: admission.reservation(seq, cache) for cache in CacheKind}
        cache = next((cache for cache, needed in needs.items() if needed <= free), None)
        if cache is None:
            break
        chosen[seq] = cache
        free -= needs[cache]
    if picks := admission.pick(inputs.config.max_batch_tokens, whole=True, chosen=chosen):
        return Plan(picks, (), "prefills go first")
    return Plan((), tuple(inputs.decoding), "nothing to prefill")
