"""Each step filled with prefill up to what the decodes can bear: the unified strategy.

Mixed steps save one read of the weights, bursts avoid the cost of mixing; the latency model says
which is cheaper for the batch at hand. Deadlines, triage and ageing are in the queue's order.
"""

from macroserve.core.instance.step import Plan, Step

STEP_TARGET = 0.93
"""Share of the TPOT target that a step with decodes may take."""

MIN_CHUNK_TOKENS = 64
"""A step that prefills does at least this much, even when decodes alone exceed the target."""

MIXING_GAIN = 0.9
"""Mix if that takes at most this share of the time of a prefill and a decode batch."""

BURST_SHARE = 0.5
"""Share of the saved TPOT that a burst of prefill may use up."""


def compose(step: Step) -> Plan:
    """Bounds: decodes wait for bursts that their slack pays for; an overdue prompt is mixed in."""
    decodes = tuple(step.decoding)
    limit = step.config.max_batch_tokens
    if not decodes:
        return Plan(step.pick(limit), (), "nothing to decode")

    # What decodes with the tightest pace leave of a step.
    target_s = STEP_TARGET * step.decoding.min_tpot_s
    chunk = step.latency.prefill_tokens_within(
        target_s, limit, num_decodes=len(decodes), decode_context=step.decoding.num_tokens
    )
    picks = step.pick(min(max(chunk, MIN_CHUNK_TOKENS), limit - len(decodes)))
    if not picks:
        return Plan((), decodes, "nothing to prefill")
    apart_s = step.predict(picks, with_decodes=False) + step.decode_s
    if step.predict(picks) <= MIXING_GAIN * apart_s:
        return Plan(picks, decodes, "mixing saves time")
    if step.overdue:
        return Plan(picks, decodes, "a prompt has waited too long")

    saved_s = step.decoding.saved_tpot_p10_s(step.now, step.decode_s, fresh=True)
    spare_s = BURST_SHARE * saved_s + target_s - step.decode_s
    burst = step.latency.prefill_tokens_within(spare_s, limit)
    if burst >= MIN_CHUNK_TOKENS:
        return Plan(step.pick(burst), (), "slack pays for a burst of prefill")
    return Plan((), decodes, "slack does not pay for prefill")
