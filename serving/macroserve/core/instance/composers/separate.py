"""Prefills alone, before decodes: vLLM as the papers measured it."""

from macroserve.core.instance.step import Plan, Step


def compose(step: Step) -> Plan:
    """Whole prompts up to the token budget; decodes run when nothing more can be prefilled.

    Bound: each prompt takes a seat, so decodes wait for ``max_num_seqs`` prompts at most.
    """
    if picks := step.pick(step.config.max_batch_tokens, whole=True):
        return Plan(picks, (), "prefills go first")
    return Plan((), tuple(step.decoding), "nothing to prefill")
