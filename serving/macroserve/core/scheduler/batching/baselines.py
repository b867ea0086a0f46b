"""The baselines are vLLM as the papers measured it, and Sarathi's chunked prefill."""

from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.iteration import IterationInputs, Plan


def prefill_first_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Run whole prompts up to the token budget; run decodes if no prompt can be prefilled.

    Bound: each prompt takes a seat, so decodes wait for ``max_num_seqs`` prompts at most.
    """
    if picks := admission.pick(inputs.config.max_batch_tokens, whole=True):
        return Plan(picks, (), "prefills go first")
    return Plan((), tuple(inputs.decoding), "nothing to prefill")


def chunked_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Run all decodes and as many prompt tokens as fill the chunk.

    Bound: decodes never wait; prompts wait while decodes alone fill the chunk, until some end.
    """
    budget = min(inputs.config.chunk_tokens, inputs.config.max_batch_tokens)
    picks = admission.pick(budget - len(inputs.decoding))
    return Plan(picks, tuple(inputs.decoding), "decodes and a chunk of prefill")
