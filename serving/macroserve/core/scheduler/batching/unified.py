"""Each step filled with prefill up to what the decodes can bear: the unified strategy.

A mixed step reads the weights once for both. How long it may take follows from the time that the
decodes have saved, or are nearly sure to save yet: as TPOT is a mean, that can be spent, and what
was lost is made up for. Deadlines, triage and ageing are in the order of the prompts.
"""

from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.iteration import IterationInputs, Plan

STEP_TARGET = 0.8
"""Share of the TPOT target that a step takes while nothing is saved. Responses of few tokens have
no time to make up for a slow one."""

EVEN_RISE, EVEN_STEP = 0.2, 0.95
"""Where decodes alone take most of that, prompts may still make a step longer by the one, up to the
other, shares of the target too: steps are even then, and nobody meets a slow one."""

SAVED_SHARE = 0.25
"""Of the time that can be spent, so much may be in one step. In the long run a step takes the whole
target, with four fifths of it saved, or less where steps are even."""

MAX_STEP_TPOTS = 4.0
"""A step takes no longer than so many TPOT targets, however much was saved."""

TBT_SHARE = 0.7
"""Of the target for the time between two tokens, a step is predicted to take so much at most. All
but one in a hundred have to keep it, and some take longer than predicted: with a tenth more, who is
predicted badly loses half, and with a tenth less, who is predicted well loses a tenth."""

SPENDING_SHARE = 0.02
"""Of the decodes, at most this share can spend less than what is counted on."""

MIN_CHUNK_TOKENS = 16
"""Less prefill than this is not worth a step's while."""

MIN_PIECE_TOKENS = 32
"""No prompt begins with a piece of less. It would have its seat from then on, and, where the next
step has no time for the rest, be late with it."""

GROWTH_SHARE = 0.1
"""Of the memory that responses under way are expected to take yet, so much is kept for them: with
none, more begin than can end, and some lose their cache half way; with more, seats stay empty."""


def unified_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Decodes in every batch, and the prefill that their saved time pays for.

    Bound: where it never pays, prompts get a whole batch once they are starved.
    """
    decodes, limit = tuple(inputs.decoding), inputs.config.max_batch_tokens
    if not decodes:
        return Plan(admission.pick(limit), (), "nothing to decode")
    if inputs.starved:
        return Plan(admission.pick(limit - len(decodes)), decodes, "prompts have waited too long")
    if not (inputs.waiting or inputs.running.prefilling):
        return Plan((), decodes, "nothing to prefill")
    target_s = inputs.decoding.min_tpot_s
    even_s = min(inputs.decode_s + EVEN_RISE * target_s, EVEN_STEP * target_s)
    budget_s = max(STEP_TARGET * target_s, even_s) + SAVED_SHARE * _spendable_s(inputs, target_s)
    budget_s = min(budget_s, MAX_STEP_TPOTS * target_s)
    if tbt_s := inputs.config.slo.tbt_s:
        budget_s = min(budget_s, TBT_SHARE * tbt_s)
    rebuild_s = inputs.latency.rebuild_s(inputs.decoding.num_hidden_tokens)
    chunk = inputs.latency.prefill_tokens_within(
        budget_s - rebuild_s,
        limit,
        num_decodes=len(decodes),
        decode_context=inputs.decoding.num_tokens,
    )
    if chunk < MIN_CHUNK_TOKENS:
        return Plan((), decodes, "slack does not pay for prefill", slack_exhausted=True)
    growth = int(GROWTH_SHARE * inputs.running.blocks.blocks_for(inputs.running.num_remaining))
    picks = admission.pick(
        min(chunk, limit - len(decodes)),
        held_back_blocks=growth,
        least_tokens=MIN_PIECE_TOKENS,
    )
    return Plan(picks, decodes, "slack pays for prefill" if picks else "nothing to prefill")


def _spendable_s(inputs: IterationInputs, target_s: float) -> float:
    """What is more than one step may take is not asked for."""
    return inputs.decoding.spendable_s(
        SPENDING_SHARE,
        inputs.now,
        inputs.decode_s,
        pace_s=max(inputs.pace_s, inputs.decode_s),
        most_s=MAX_STEP_TPOTS * target_s / SAVED_SHARE,
    )
