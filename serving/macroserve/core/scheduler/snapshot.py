"""The status that an instance reports to its cell scheduler."""

from itertools import chain
from math import isinf

from macroserve.core.batch import BatchKind
from macroserve.core.latency import LatencyModel
from macroserve.core.request import DEFAULT_CLASS, Request
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.scheduler.estimators import PrefillPace, StepTimeMeans
from macroserve.core.scheduler.running import Running
from macroserve.core.scheduler.waiting import WaitingQueue
from macroserve.core.status import Ended, InstanceStatus, Phase

MAX_TARGETS = 16
"""Maximum TTFT targets listed in a status: requests may bring their own."""


class Tally:
    """Counts since the start, and ids admitted since the last status."""

    def __init__(self) -> None:
        self.num_statuses = 0
        self.iterations = 0
        self.finished = 0
        self.attained = 0
        self.ended_by_class: dict[str, Ended] = {}
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.admitted: list[str] = []

    def admit(self, request: Request) -> None:
        """Record a request under its cell scheduler's id."""
        self.admitted.append(request.route_id or request.request_id)

    def end(self, request: Request, *, attained: bool) -> None:
        self.finished += 1
        self.attained += attained
        if request.slo_class != DEFAULT_CLASS:
            so_far = self.ended_by_class.get(request.slo_class, Ended())
            self.ended_by_class[request.slo_class] = so_far + Ended(1, int(attained))


class PhaseRecord:
    """Current phase: successive batches of the same kind (EcoServe, section 3.2)."""

    def __init__(self) -> None:
        self.current = Phase.IDLE
        self.since_s = 0.0
        """Start of the phase, seconds."""
        self.prefill_s = 0.0
        """Predicted time of prefills added since the last decode phase, or of all waiting ones if
        prefills and decodes are mixed, seconds."""

    def enter(self, kind: BatchKind, waiting_prefill_s: float, now: float) -> None:
        """Update the phase for a batch that starts while prompts of ``waiting_prefill_s`` wait."""
        phase = Phase(kind.value)
        if phase is not self.current:
            self.current, self.since_s = phase, now
            if phase in (Phase.DECODE, Phase.IDLE):
                self.prefill_s = 0.0
        if phase is Phase.MIXED:  # no phases, so all waiting prefills are pending
            self.prefill_s = waiting_prefill_s


def snapshot(
    now: float,
    config: InstanceConfig,
    waiting: WaitingQueue,
    running: Running,
    latency: LatencyModel,
    tally: Tally,
    pace: PrefillPace,
    phase: PhaseRecord,
    step_times: StepTimeMeans,
    *,
    draining: bool,
) -> InstanceStatus:
    """Return the next status, and clear the admitted ids of ``tally``."""
    decoding = running.decoding
    full_prefill_s = latency.prefill_s(config.max_batch_tokens)
    saved_mean_s = decoding.saved_tpot_mean_s(now)
    saves = not isinf(saved_mean_s)
    waiting_tokens, prefill_s = waiting.num_tokens, waiting.prefill_s
    oldest_s, by_ttft = waiting.oldest_arrival_s(), waiting.prefills_by_ttft()
    for seq in chain(running.prefilling.values(), running.loading.values()):
        waiting_tokens += seq.num_to_prefill
        left_s = seq.prefill_s * seq.share_left
        prefill_s += left_s
        if not seq.is_streaming:
            ttft_s = seq.request.slo.ttft_s
            by_ttft[ttft_s] = by_ttft.get(ttft_s, 0.0) + left_s
        oldest_s = seq.arrival_s if oldest_s is None else min(oldest_s, seq.arrival_s)
    # The shortest prefill: every batch reads all weights.
    one_batch_s = latency.prefill_s(1)
    prefill_s_per_token = full_prefill_s / config.max_batch_tokens
    step_s, predicted_step_s = step_times.means_s()
    num_hidden = decoding.num_hidden_tokens
    admitted, tally.admitted = tuple(tally.admitted), []
    tally.num_statuses += 1
    return InstanceStatus(
        seq=tally.num_statuses,
        phase=phase.current,
        phase_s=now - phase.since_s,
        num_waiting=len(waiting),
        num_running=len(running),
        num_decoding=len(decoding),
        waiting_tokens=waiting_tokens,
        waiting_prefill_s=max(prefill_s, one_batch_s) if waiting_tokens else 0.0,
        yielding=_longest_first(by_ttft) if config.strategy.triage else (),
        phase_prefill_s=max(phase.prefill_s, one_batch_s) if phase.prefill_s else 0.0,
        saved_tpot_mean_s=saved_mean_s if saves else None,
        saved_tpot_p10_s=decoding.saved_tpot_s(0.1, now) if saves else None,
        decode_step_s=decoding.step_s(latency) / decoding.speculation.emitted,
        prefill_s_per_token=prefill_s_per_token,
        queue_s_per_token=pace.s_per_token(prefill_s_per_token),
        remaining_tokens=waiting.predicted_tokens + running.num_remaining,
        free_blocks=running.blocks.free,
        num_blocks=running.blocks.num_blocks,
        block_size=running.blocks.block_size,
        hidden_blocks=running.blocks.mean_hidden_blocks_for(num_hidden) if num_hidden else 0,
        step_s=step_s,
        predicted_step_s=predicted_step_s,
        oldest_wait_s=0.0 if oldest_s is None else max(0.0, now - oldest_s),
        admitted=admitted,
        finished=tally.finished,
        attained=tally.attained,
        ended_by_class=dict(tally.ended_by_class),
        draining=draining,
        iterations=tally.iterations,
        prompt_tokens=tally.prompt_tokens,
        cached_tokens=tally.cached_tokens,
        decodes=decoding.speculation.num_decodes,
        decoded_tokens=decoding.speculation.num_emitted,
    )


def _longest_first(prefills_s: dict[float, float]) -> tuple[tuple[float, float], ...]:
    """Return pairs of target and predicted time of its prefills for the longest targets."""
    return tuple(sorted(prefills_s.items(), reverse=True)[:MAX_TARGETS])
