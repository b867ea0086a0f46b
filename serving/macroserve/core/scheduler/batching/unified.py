"""The unified strategy's batches: decodes, and as much prefill as their targets allow.

A mixed step reads the weights once for both. Its time limit follows from the time that the decodes
have saved or are nearly sure to save: TPOT is a mean, so saved time can be spent and lost time made
up. Deadlines, triage and aging are a matter of the order of prompts.

A step is planned to keep its limit in nine of ten cases, by the errors of recent predictions
(``latency.StepError``): planned without margin, it would exceed it half of the time.
"""

from math import ceil, inf

from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.config import MIN_CHUNK_TOKENS
from macroserve.core.scheduler.iteration import IterationInputs, Plan

STEP_TARGET = 0.8
"""Step time as a share of the TPOT target while nothing is saved: short responses have no time to
make up for a slow step."""

EVEN_RISE, EVEN_STEP = 0.2, 0.95
"""Shares of the TPOT target: if decodes alone take most of STEP_TARGET, prompts may lengthen a step
by EVEN_RISE, up to EVEN_STEP. Then steps are even, and no request has a slow one."""

SAVED_SHARE = 0.25
"""Maximum share of the spendable time used in one step. In the long run a step takes the whole
target, with four fifths of it saved, or less if steps are even."""

MAX_STEP_TPOTS = 4.0
"""Maximum step time in TPOT targets, regardless of the time saved."""

TBT_SHARE = 0.7
"""Maximum predicted step time as a share of the TBT target, which 99 of 100 steps must meet. With a
tenth more, engines with poor predictions lose half of their requests; with a tenth less, those with
good ones lose a tenth."""

SPENDING_SHARE = 0.02
"""Share of decodes that may have less time to spend than assumed."""

MIN_PIECE_TOKENS = 32
"""Minimum first piece of a prompt, tokens. A smaller one would take a seat and be late if the next
step has no time for the rest."""

MIN_PIECE_SHARE = 0.125
"""Minimum piece relative to the computed tokens of its prompt: kernels run at half speed on short
pieces with a long context. With 0.25, long prompts gain no more, and shorter ones wait longer on
engines without that effect."""

MAX_SAVING_DECODE = 0.5
"""Maximum time of decodes alone, as a share of the TPOT target, at which steps without prefill save
time for a longer piece; above it they would save too slowly."""

GROWTH_SHARE = 0.1
"""Part kept free of the memory that running responses are expected to grow by. Without it, more
requests begin than can end, and some lose their cache half way; with more, seats stay empty."""

PATIENT_SHARE = 0.1
"""Maximum step time with prompts of longer targets, as a share of the tightest recent TTFT target:
a request that arrives during a step waits for its end. With less, the tightest class attains more
and the others much less."""

PATIENT_STEPS = 2.0
"""The same relative to decodes alone, if that is longer: such prompts get at least half of the
time, regardless of the tightest target."""


def unified_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Plan the decodes that do not rest, and the prefill that their saved time pays for.

    Bound: if it never pays, starved prompts get a whole batch.
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
    # A step emits several tokens per decode if the engine speculates.
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
    """Return the minimum prefill tokens that are worth a step, given the begun prompts."""
    begun = inputs.running.prefilling.values()
    pieces = [min(MIN_PIECE_SHARE * seq.num_computed, seq.num_to_prefill) for seq in begun]
    return max(pieces, default=0.0)


def _patient_tokens(inputs: IterationInputs) -> int:
    """Return the maximum tokens per step for prompts without the tightest recent TTFT target."""
    longest_s = PATIENT_SHARE * inputs.inflow.min_ttft_s(inputs.now) / inputs.latency.error_factor
    alone_s = max(inputs.decode_s, inputs.latency.prefill_s(1))
    within = inputs.prefill_tokens_within(max(longest_s, PATIENT_STEPS * alone_s))
    return max(within, MIN_PIECE_TOKENS, ceil(_least_piece(inputs)))


def _spendable_s(inputs: IterationInputs, target_s: float) -> float:
    """Return the time that the decodes can spend, seconds, up to the most that one step may use."""
    error = inputs.latency.error_factor
    return inputs.decoding.spendable_s(
        SPENDING_SHARE,
        inputs.now,
        error * inputs.decode_token_s,
        pace_s=error * max(inputs.pace_s, inputs.decode_token_s),
        most_s=MAX_STEP_TPOTS * target_s / SAVED_SHARE,
        most_tpot_s=inputs.decoding.min_tpot_s if inputs.rests else inf,
    )
