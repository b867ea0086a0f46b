"""The macro strategy's batches: the mechanisms of the four papers, each by its paper's rules.

- EcoServe: an LP instance alternates prefill and decode phases, paid for by saved TPOT.
- Ascendra: HP instances take the requests that LP instances would serve late, and prefill first.
- Apt-Serve: requests to begin on an LP instance, and their caches, are chosen by value per memory.
- EconoServe: a response waits for memory for its expected length and lends the unused part.

If two rules conflict, one gives way. Responses have their own memory, so Apt-Serve's decode
iteration leaves none out. Phases do not mix, so an LP instance has neither EconoServe's forward
size nor Ascendra's time budget.
"""

from functools import partial

from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.batching.aptserve import chosen_prompts
from macroserve.core.scheduler.batching.ascendra import prefills_first
from macroserve.core.scheduler.batching.ecoserve import alternate
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.iteration import IterationInputs, Plan
from macroserve.core.scheduler.responses import granted, taken_blocks
from macroserve.core.status import Pool


def macro_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Plan a phase on an LP instance; prefills, then decodes on an HP instance.

    Bound: as for ``ecoserve_batch`` and ``econoserve_batch``; while memory is short, late requests
    begin last.
    """
    resumes = tuple(granted(inputs))
    num_taken = taken_blocks(inputs, resumes)
    pick = partial(admission.pick, held_back_blocks=num_taken)
    if inputs.config.pool is Pool.HP:
        waiting = [seq for seq in inputs.waiting if seq not in inputs.preempted]
        chosen = dict.fromkeys(waiting, CacheKind.KV)
        return prefills_first(inputs, pick(inputs.config.max_batch_tokens, chosen=chosen), resumes)
    chosen = chosen_prompts(inputs, admission, inputs.running.blocks.free - num_taken)
    return alternate(inputs, partial(pick, whole=True, chosen=chosen), resumes)
