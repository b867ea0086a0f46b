"""Baselines: vLLM as the papers measured it, today's vLLM, and Sarathi's chunks."""

from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.iteration import IterationInputs, Plan


def prefill_first_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Plan whole prompts up to the token budget, or decodes if no prompt can be prefilled: vLLM's
    schedule before chunked prefill, which the papers measured.

    Bound: each prompt takes a seat, so decodes wait for ``max_num_seqs`` prompts at most.
    """
    if picks := admission.pick(inputs.config.max_batch_tokens, whole=True):
        return Plan(picks, (), "prefills go first")
    return Plan((), tuple(inputs.decoding), "nothing to prefill", repeatable=inputs.only_decodes)


def mixed_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Plan all decodes, and prompts that fill the rest of the batch (vLLM's V1 scheduler).

    vLLM schedules running requests in order of entry, of which only the last can have a begun
    prompt, so decodes come first there as well.
    Bound: decodes never wait, but while prompts arrive each step takes as long as a batch of
    ``max_batch_tokens``. A begun prompt always continues.
    """
    return _filled(inputs.config.max_batch_tokens, inputs, admission)


def chunked_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Plan all decodes, and prompts that fill the rest of the chunk (Sarathi).

    Bound: decodes never wait; prompts wait while decodes alone fill the chunk, until some end.
    """
    return _filled(
        min(inputs.config.tuning.chunk_tokens, inputs.config.max_batch_tokens), inputs, admission
    )


def _filled(num_tokens: int, inputs: IterationInputs, admission: Admission) -> Plan:
    picks = admission.pick(num_tokens - inputs.tokens_of(len(inputs.decoding)))
    return Plan(
        picks,
        tuple(inputs.decoding),
        "decodes and a chunk of prefill",
        repeatable=inputs.only_decodes,
    )
