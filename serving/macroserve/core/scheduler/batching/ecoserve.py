"""EcoServe's batches: alternating phases of prefills and decodes (section 3.2)."""

from collections.abc import Callable
from functools import partial

from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.iteration import IterationInputs, Pick, Plan, Resume
from macroserve.core.status import Phase


def ecoserve_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Plan prefills while the saved TPOT of the decoding requests pays for them, else decodes."""
    return alternate(inputs, partial(admission.pick, whole=True))


def alternate(
    inputs: IterationInputs, pick: Callable[[int], list[Pick]], resumes: tuple[Resume, ...] = ()
) -> Plan:
    """Return the plan of the phase that is due.

    pick: returns prefills of at most the given number of tokens.
    resumes: paused responses that may continue in a decode phase.

    As in the paper, TPOT counts from the switch to decode: the clock of a sequence with only its
    first token out starts with its first decode batch.
    """
    config = inputs.config
    picks = pick(config.max_batch_tokens)
    if config.strategy.mean_slack:
        saved_s = inputs.decoding.saved_tpot_mean_s(inputs.now)
    else:
        saved_s = inputs.decoding.saved_tpot_s(0.1, inputs.now, inputs.decode_token_s)
    paid = _within(saved_s, inputs, pick, picks)
    phase, reason = next_phase(
        inputs.phase,
        can_prefill=bool(picks),
        can_decode=bool(inputs.decoding or resumes),
        paid=bool(paid),
        overdue=inputs.overdue,
        spent=inputs.phase is Phase.PREFILL
        and inputs.now - inputs.phase_since_s >= _longest_phase_s(inputs),
    )
    if phase is Phase.PREFILL:
        if not inputs.decoding:
            return Plan(picks, (), reason)
        # Overdue prompts may take as long as the decode batch before them; at least one runs.
        return Plan(paid or _within(inputs.decode_s, inputs, pick, picks) or picks[:1], (), reason)
    inputs.decoding.start_clocks(inputs.now)
    for resume in resumes:
        if resume.seq.num_emitted == 1:
            resume.seq.tpot_budget_until_s = inputs.now
    return Plan((), inputs.decodes_with(resumes), reason, resumes)


def _longest_phase_s(inputs: IterationInputs) -> float:
    """Return the longest prefill phase, seconds: the tightest TTFT target of the responses waiting
    for its end, which counts towards TTFT (section 3.2)."""
    paused = [seq.request.slo.ttft_s for seq in inputs.running.paused.values()]
    return min([inputs.decoding.min_ttft_s, *paused])


def _within(
    budget_s: float, inputs: IterationInputs, pick: Callable[[int], list[Pick]], picks: list[Pick]
) -> list[Pick]:
    """Return the picks that ``budget_s`` pays for."""
    if not picks or inputs.predict_s(picks) <= budget_s:
        return picks
    context = picks[0].num_before
    limit = inputs.config.max_batch_tokens
    return pick(inputs.latency.prefill_tokens_within(budget_s, limit, context))


def next_phase(
    current: Phase, *, can_prefill: bool, can_decode: bool, paid: bool, overdue: bool, spent: bool
) -> tuple[Phase, str]:
    """Return the phase of the next batch and the reason (temporal disaggregation, section 3.2).

    paid: whether saved TPOT covers a prefill batch.
    overdue: whether the oldest prompt has waited too long.
    spent: whether the prefill phase has reached its maximum duration.

    Bounds: an overdue prompt waits for at most one decode batch and then for those ahead of it; a
    decode waits for at most one prefill phase.
    """
    if not can_prefill:
        return (Phase.DECODE, "nothing to prefill") if can_decode else (Phase.IDLE, "no work")
    if not can_decode:
        return Phase.PREFILL, "nothing to decode"
    if paid and not spent:
        return Phase.PREFILL, "saved TPOT pays for prefills"
    if overdue and current is not Phase.PREFILL:
        return Phase.PREFILL, "a prompt has waited too long"
    return Phase.DECODE, "saved TPOT does not pay for prefills"
