"""Decodes first, then a chunk of prefill in the same batch: Sarathi."""

from macroserve.core.instance.step import Plan, Step


def compose(step: Step) -> Plan:
    """All decodes and as many prompt tokens as fill the chunk.

    Bound: decodes never wait; prompts wait while decodes alone fill the chunk, until some end.
    """
    budget = min(step.config.chunk_tokens, step.config.max_batch_tokens)
    picks = step.pick(budget - len(step.decoding))
    return Plan(picks, tuple(step.decoding), "decodes and a chunk of prefill")
