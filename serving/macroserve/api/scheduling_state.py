"""State of instances and cells, for ``kubectl describe`` and ``macroserve status``."""

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
    """Mean times of the same recent steps, seconds."""

    measured_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True)
class InstanceState:
    """State of an instance by its last report; times include the report's age."""

    name: str
    cell: str
    pool: Pool
    phase: Phase | None
    """None before the first report."""
    phase_s: float | None
    """Time since the phase began, seconds."""
    draining: bool
    num_running: int
    num_waiting: int
    """Includes requests on their way to the instance."""
    oldest_wait_s: float | None
    """Longest wait of a request without a first token, seconds; None without such a request."""
    slack_p10_s: float | None
    """Tenth percentile of the decoding requests' saved TPOT, seconds; None if none has any yet."""
    kv_used: Share
    """Reserved blocks of the KV cache."""
    hidden_used: Share
    """Blocks of the KV cache that hold hidden states."""
    hits: Share
    """Prompt tokens found in the prefix cache since the start."""
    attained: Share
    steps: StepTimes | None
    """None before the first step."""


@dataclass(frozen=True, slots=True)
class CellState:
    """State of a cell by the last reports of its instances, with fields as in InstanceState."""

    name: str
    instances: tuple[InstanceState, ...]
    """Sorted by number."""
    num_in_phase: dict[Phase, int]
    oldest_wait_s: float | None
    slack_p10_s: float | None
    """Lowest of the instances' tenth percentiles, seconds."""
    kv_used: Share
    """Includes blocks for requests on their way."""
    hidden_used: Share
    hits: Share
    """Prompt tokens of the last minute found in prefix caches."""
    steps: StepTimes | None
    """Means over the instances; None before the first step."""


def cell_states(reports: Iterable[CellReport]) -> tuple[CellState, ...]:
    """Return the states of the cells, sorted by number."""
    return tuple(sorted(map(_cell_state, reports), key=lambda cell: by_number(cell.name)))


def recent_refusals(reports: Iterable[CellReport]) -> tuple[tuple[str, int], ...]:
    """Return the refusals of the last minute by reason, the most frequent first."""
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
