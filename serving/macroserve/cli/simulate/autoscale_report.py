"""Report of an autoscaled simulation: the fleet over time."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

from rich.console import Group, RenderableType
from rich.table import Table

from macroserve.bench.durations import seconds
from macroserve.sim.autoscaling.timeline import Moment, Timeline


@dataclass(frozen=True, slots=True)
class ChangeReport:
    """A change of the target."""

    at_s: float
    before: int
    after: int
    reason: str


@dataclass(frozen=True, slots=True)
class AutoscaleReport:
    """Results for an autoscaled fleet, until the last request arrived."""

    mean_instances: float
    """Mean number of instances that start, serve or drain."""
    mean_ready: float
    """Mean number of instances that accept requests."""
    num_ups: int
    num_downs: int
    num_flaps: int
    """Number of times that the target was raised within ten minutes after it was lowered."""
    num_failed_starts: int
    changes: tuple[ChangeReport, ...]
    timeline: tuple[Moment, ...]

    @classmethod
    def of(cls, timeline: Timeline) -> Self:
        return cls(
            timeline.mean_existing,
            timeline.mean_ready,
            timeline.num_ups,
            timeline.num_downs,
            timeline.num_flaps,
            timeline.num_failed,
            tuple(
                ChangeReport(each.change.at_s, each.change.before, each.change.after, each.reason)
                for each in timeline.changes
            ),
            timeline.moments,
        )

    def document(self) -> Mapping[str, object]:
        return asdict(self)

    def tables(self) -> RenderableType:
        changes = Table("at", "instances", "why", title="Autoscaling", title_justify="left")
        for each in self.changes:
            changes.add_row(seconds(each.at_s), f"{each.before} to {each.after}", each.reason)
        totals = Table.grid(padding=(0, 2))
        totals.add_row(
            "instances",
            f"{self.mean_instances:.2f} in the mean, starting and draining ones too; "
            f"{self.mean_ready:.2f} take requests",
        )
        totals.add_row(
            "changes",
            f"{self.num_ups} up, {self.num_downs} down; {self.num_flaps} up soon after a down",
        )
        totals.add_row("failed starts", f"{self.num_failed_starts}")
        return Group(changes, totals)
