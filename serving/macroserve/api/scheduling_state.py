"""The state of instances and cells, from their reports, for ``kubectl describe`` and ``macroserve
status``."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from macroserve.api.messages import CellReport, InstanceReport
from macroserve.core.status import Phase, Pool, by_number


class Share(NamedTuple):
    """A part of a whole that may be 0."""

    part: int
    whole: int


class StepTimes(NamedTuple):
    """Means over the same last steps, seconds."""

    measured_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True)
class InstanceState:
    """The state of one instance, by its last report. Times include the age of the report.

    Attributes:
        phase: None before its first report.
        phase_s: time since the phase began, seconds; None if unknown.
        num_waiting: waiting requests, those on their way to it included.
        oldest_wait_s: wait of the oldest request without a first token, seconds; None without one.
        slack_p10_s: tenth percentile of the decoding requests' saved TPOT, seconds; None if none
            saves any yet.
        kv_used: reserved blocks of its KV cache.
        hidden_used: blocks of it that hold hidden states.
        hits: prompt tokens that its prefix cache had, since it began.
        steps: None before the first step.
    """

    name: str
    cell: str
    pool: Pool
    phase: Phase | None
    phase_s: float | None
    draining: bool
    num_running: int
    num_waiting: int
    oldest_wait_s: float | None
    slack_p10_s: float | None
    kv_used: Share
    hidden_used: Share
    hits: Share
    attained: Share
    steps: StepTimes | None


@dataclass(frozen=True, slots=True)
class CellState:
    """The state of one cell, by the last reports of its instances.

    Attributes:
        instances: in the order of their numbers.
        num_in_phase: instances in each phase, the most frequent first.
        oldest_wait_s: wait of the oldest request without a first token, seconds; None without one.
        slack_p10_s: lowest of its instances' tenth percentiles of saved TPOT, seconds; None without
            any.
        kv_used: reserved blocks of its instances' KV caches, those of requests on their way
            included.
        hidden_used: blocks of them that hold hidden states.
        hits: prompt tokens of the last minute that prefix caches had.
        steps: means over its instances; None before the first step.
    """

    name: str
    instances: tuple[InstanceState, ...]
    num_in_phase: dict[Phase, int]
    oldest_wait_s: float | None
    slack_p10_s: float | None
    kv_used: Share
    hidden_used: Share
    hits: Share
    steps: StepTimes | None


def cell_states(reports: Iterable[CellReport]) -> tuple[CellState, ...]:
    """Return the states of the cells, in the order of their numbers."""
    return tuple(sorted(map(_cell_state, reports), key=lambda cell: by_number(cell.name)))


def recent_refusals(reports: Iterable[CellReport]) -> tuple[tuple[str, int], ...]:
    """Return why requests were refused in the last minute, and how often, the most frequent reason
    first: see ``CellReport.recent_refused``."""
    refused = Counter[str]()
    for report in reports:
        refused.update(report.recent_refused)
    return tuple(sorted(refused.items(), key=lambda each: (-each[1], each[0])))


def _cell_state(report: CellReport) -> CellState:
    view = report.cell
    instances = tuple(
        _instance_state(view.name, each)
        for each in sorted(report.instances, key=lambda each: by_number(each.name))
    )
    waits_s = [each.oldest_wait_s for each in instances if each.oldest_wait_s is not None]
    slacks_s = [each.slack_p10_s for each in instances if each.slack_p10_s is not None]
    phases = Counter(each.phase for each in instances if each.phase is not None)
    return CellState(
        name=view.name,
        instances=instances,
        num_in_phase=dict(phases.most_common()),
        oldest_wait_s=max(waits_s, default=None),
        slack_p10_s=min(slacks_s, default=None),
        kv_used=Share(view.num_blocks - view.free_blocks, view.num_blocks),
        hidden_used=Share(sum(each.hidden_used.part for each in instances), view.num_blocks),
        hits=Share(report.recent_cached_tokens, report.recent_prompt_tokens),
        steps=_mean([each.steps for each in instances if each.steps is not None]),
    )


def _instance_state(cell: str, report: InstanceReport) -> InstanceState:
    status, age_s = report.status, report.age_s
    slack_s = status.saved_tpot_p10_s
    return InstanceState(
        name=report.name,
        cell=cell,
        pool=report.pool,
        phase=status.phase if report.heard else None,
        phase_s=None if status.phase_s is None else max(0.0, status.phase_s + age_s),
        draining=report.draining,
        num_running=status.num_running,
        num_waiting=status.num_waiting + report.in_flight,
        oldest_wait_s=status.oldest_wait_s + age_s if status.oldest_wait_s else None,
        slack_p10_s=None if slack_s is None else slack_s - age_s,
        kv_used=Share(status.num_blocks - status.free_blocks, status.num_blocks),
        hidden_used=Share(status.hidden_blocks, status.num_blocks),
        hits=Share(status.cached_tokens, status.prompt_tokens),
        attained=Share(status.attained, status.finished),
        steps=_steps(report),
    )


def _steps(report: InstanceReport) -> StepTimes | None:
    measured_s, predicted_s = report.status.step_s, report.status.predicted_step_s
    if measured_s is None or predicted_s is None:
        return None
    return StepTimes(measured_s, predicted_s)


def _mean(steps: Sequence[StepTimes]) -> StepTimes | None:
    if not steps:
        return None
    return StepTimes(fmean([s.measured_s for s in steps]), fmean([s.predicted_s for s in steps]))
