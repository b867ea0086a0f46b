"""Decide which waiting requests an LP instance offloads (Ascendra, section 5.3)."""

from macroserve.core.scheduler.candidates import Candidates
from macroserve.core.scheduler.iteration import IterationInputs
from macroserve.core.scheduler.sequence import Sequence


def due_to_offload(inputs: IterationInputs, candidates: Candidates) -> list[Sequence]:
    """Return the requests about to miss their TTFT here, early enough for an HP instance.

    A request is offloaded if the slack left, beside its prefill, is below the threshold plus a
    full batch: on the HP instance it waits for one batch at worst, and here for one before it is
    considered again. With triage, only deferred requests leave: the others will be in time here.
    """
    now, config, waiting = inputs.now, inputs.config, inputs.waiting
    if not waiting:
        return []
    full_step_s = inputs.latency.prefill_s(config.max_batch_tokens) + inputs.decode_s
    horizon_s = now + config.tuning.offload_threshold_s + full_step_s
    longest_s = inputs.latency.prefill_s(config.max_model_len)
    num_late = waiting.num_due_before(now)
    num_near = waiting.num_due_before(horizon_s + longest_s)
    return [
        seq
        for seq in waiting.by_deadline.seqs[num_late:num_near]
        if now <= seq.deadline_s - seq.prefill_s < horizon_s
        and (not config.strategy.triage or candidates.is_infeasible(seq))
    ]
