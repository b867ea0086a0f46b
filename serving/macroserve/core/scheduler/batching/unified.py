"""The unified strategy's batches: decodes, and as much prefill as their targets allow.

A mixed step reads the weights once for both. Its time limit follows from the time that the decodes
have saved, or are nearly sure to save: TPOT is a mean, so saved time can be spent and lost time
made up. A long prompt continues in long pieces. The order of the prompts takes care of deadlines,
triage and aging.

A step is planned to keep its limit in nine of ten cases, by the errors of recent predictions
(``latency.StepError``): a response that meets its target in the mean misses it half of the time.
"""

from math import ceil, inf

from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.config import MIN_CHUNK_TOKENS
from macroserve.core.scheduler.iteration import IterationInputs, Plan

STEP_TARGET = 0.8
"""Share of the TPOT target that a step takes while nothing is saved: short responses have no time
to make up for a slow step."""

EVEN_RISE, EVEN_STEP = 0.2, 0.95
"""Shares of the TPOT target: if decodes alone take most of STEP_TARGET, prompts may make a step
longer by EVEN_RISE, up to EVEN_STEP. Then steps are even, and no request has a slow one."""

SAVED_SHARE = 0.25
"""Largest share of the spendable time used in one step. In the long run a step takes the whole
target, with four fifths of it saved, or less if steps are even."""

MAX_STEP_TPOTS = 4.0
"""Longest step, in TPOT targets, regardless of the time saved."""

TBT_SHARE = 0.7
"""Longest predicted step, as a share of the target for the time between two tokens. 99 of 100 steps
have to meet the target, and some take longer than predicted: with a tenth more, engines with poor
predictions lose half of their requests, and with a tenth less, those with good ones lose a tenth.
"""

SPENDING_SHARE = 0.02
"""Share of the decodes that may have less time to spend than is assumed."""

MIN_PIECE_TOKENS = 32
"""Minimum tokens with which a prompt begins. With a smaller piece it would take a seat and be late
if the next step has no time for the rest."""

MIN_PIECE_SHARE = 0.125
"""Minimum tokens of a piece, relative to the computed tokens of its prompt: kernels run at half
speed on short pieces with a long context. With 0.25, long prompts gain no more, and shorter ones
wait longer on engines without that effect."""

MAX_SAVING_DECODE = 0.5
"""Share of the TPOT target up to which steps of decodes alone save time for a longer piece; above,
they would save too slowly."""

GROWTH_SHARE = 0.1
"""Share kept free of the memory that running responses are still expected to take. With none, more
requests begin than can end, and some lose their cache half way; with more, seats stay empty."""

PATIENT_SHARE = 0.1
"""Share of the tightest recent TTFT target up to which prompts with longer targets lengthen a step:
a request that arrives during a step waits for its end. With less, the tightest class attains more,
and the others much less."""

PATIENT_STEPS = 2.0
"""Longest step with such prompts, relative to its decodes alone, if that is longer: they get at
least half of the time, regardless of the tightest target."""


def unified_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Plan the decodes whose turn it is, and the prefill that their saved time pays for.

    Bound: if it never pays, prompts get a whole batch once they are starved.
    """
    decodes, limit = inputs.turn.ids, inputs.config.max_batch_tokens
    if not decodes:
        urgent = max(0, limit - _patient_tokens(inputs))
        return Plan(admission.pick(limit, urgent_tokens=urgent), (), "nothing to decode")
    if not inputs.may_prefill:
        repeatable = inputs.only_decodes and not inputs.decoding.has_looser
        return Plan((), decodes, "no prompt, or no seat", repeatable=repeatable)
    left = limit - inputs.tokens_of(len(decodes))
    if inputs.starved:
        return Plan(admission.pick(left), decodes, "prompts have waited too long")
    speculation, error = inputs.decoding.speculation, inputs.latency.error_factor
    # A step gives each decode this many tokens.
    target_s = inputs.decoding.min_tpot_s * speculation.emitted
    even_s = min(error * inputs.decode_s + EVEN_RISE * target_s, EVEN_STEP * target_s)
    budget_s = max(STEP_TARGET * target_s, even_s) + SAVED_SHARE * _spendable_s(inputs, target_s)
    budget_s = min(budget_s, MAX_STEP_TPOTS * target_s)
    budget_s = min(budget_s, TBT_SHARE * inputs.decoding.min_tbt_s)
    chunk = inputs.prefill_tokens_within(budget_s / error)
    if chunk < MIN_CHUNK_TOKENS:
        return Plan((), decodes, "slack does not pay for prefill", slack_exhausted=True)
    if inputs.decode_s < MAX_SAVING_DECODE * target_s and chunk < min(_least_piece(inputs), left):
        return Plan((), decodes, "saves time for a longer piece", slack_exhausted=True)
    growth = int(GROWTH_SHARE * inputs.running.blocks.mean_blocks_for(inputs.running.num_remaining))
    num_tokens = min(chunk, left)
    picks = admission.pick(
        num_tokens,
        held_back_blocks=growth,
        least_tokens=MIN_PIECE_TOKENS,
        urgent_tokens=max(0, num_tokens - _patient_tokens(inputs)),
    )
    return Plan(picks, decodes, "slack pays for prefill" if picks else "nothing to prefill")


def _least_piece(inputs: IterationInputs) -> float:
    """Return the minimum tokens of prefill that are worth a step, given the begun prompts."""
    begun = inputs.running.prefilling.values()
    pieces = [min(MIN_PIECE_SHARE * seq.num_computed, seq.num_to_prefill) for seq in begun]
    return max(pieces, default=0.0)


def _patient_tokens(inputs: IterationInputs) -> int:
    """Return the maximum tokens of a step for prompts with a longer TTFT target than another recent
    request."""
    longest_s = PATIENT_SHARE * inputs.inflow.min_ttft_s(inputs.now) / inputs.latency.error_factor
    alone_s = max(inputs.decode_s, inputs.latency.prefill_s(1))
    within = inputs.prefill_tokens_within(max(longest_s, PATIENT_STEPS * alone_s))
    return max(within, MIN_PIECE_TOKENS, ceil(_least_piece(inputs)))


def _spendable_s(inputs: IterationInputs, target_s: float) -> float:
    """Return the time that the decodes can spend, seconds, bounded by the most that one step may
    use."""
    error = inputs.latency.error_factor
    return inputs.decoding.spendable_s(
        SPENDING_SHARE,
        inputs.now,
        error * inputs.decode_token_s,
        pace_s=error * max(inputs.pace_s, inputs.decode_token_s),
        most_s=MAX_STEP_TPOTS * target_s / SAVED_SHARE,
        most_tpot_s=inputs.decoding.min_tpot_s if inputs.rests else inf,
    )
