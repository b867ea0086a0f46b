"""The baselines: vLLM as the papers measured it, and Sarathi's chunked prefill."""

from macroserve.core.scheduler.iteration import Plan, Step


def prefill_first_batch(step: Step) -> Plan:
    """Whole prompts up to the token budget; decodes run when nothing more can be prefilled.

    Bound: each prompt takes a seat, so decodes wait for ``max_num_seqs`` prompts at most.
    """
    if picks := step.pick(step.config.max_batch_tokens, whole=True):
        return Plan(picks, (), "prefills go first")
    return Plan((), tuple(step.decoding), "nothing to prefill")


def chunked_batch(step: Step) -> Plan:
    """All decodes and as many prompt tokens as fill the chunk.

    Bound: decodes never wait; prompts wait while decodes alone fill the chunk, until some end.
    """
    budget = min(step.config.chunk_tokens, step.config.max_batch_tokens)
    picks = step.pick(budget - len(step.decoding))
    return Plan(picks, tuple(step.decoding), "decodes and a chunk of prefill")
