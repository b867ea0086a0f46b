"""SimulationReport of a simulation: tables for people, JSON for programs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Self

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from macroserve.bench.durations import seconds
from macroserve.bench.serve.metrics import Distribution
from macroserve.core.request import DEFAULT_CLASS, Slo
from macroserve.sim.results import RunResult


@dataclass(frozen=True, slots=True)
class ClassReport:
    """Results for one SLO class."""

    num_requests: int
    attainment: float
    """Share of the requests within their targets."""
    longest_wait_s: float
    """Longest time to a first token or a refusal, seconds."""


def _by_class(outcome: RunResult) -> dict[str, ClassReport]:
    by_class = outcome.by_class
    if by_class.keys() <= {DEFAULT_CLASS}:
        return {}
    return {
        name: ClassReport(
            len(results),
            mean([result.attained for result in results]),
            max([result.wait_s for result in results]),
        )
        for name, results in by_class.items()
    }


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """Results of one simulation."""

    num_requests: int
    num_refused: int
    num_devices: int
    """Devices of all instances."""
    attainment: float
    """Share of the requests within their targets."""
    attainment_by_size: tuple[float, ...]
    """Attainment of each quarter of the requests, from the fewest tokens to the most; empty for
    fewer than four requests."""
    classes: Mapping[str, "ClassReport"]
    """Results by SLO class; empty if all requests are of the default class."""
    longest_wait_s: float
    """Longest time to a first token or a refusal, seconds."""
    prefix_cache_hit_ratio: float
    """Share of the prompt tokens found in prefix caches."""
    one_cache_hit_ratio: float | None
    """Share of the prompt tokens that one cache of all instances' size would hold, in order of
    arrival; None if the load has no shared prefixes."""
    num_unsent: int
    """Turns not sent because an earlier one of their conversation was refused."""
    ttft: Distribution | None
    tpot: Distribution | None
    tbt: Distribution | None
    """Distribution of the 99th percentile of each response's gaps."""

    @classmethod
    def of(cls, outcome: RunResult, num_devices: int) -> Self:
        served = [result for result in outcome.results if not result.refused]
        longer = [result for result in served if result.num_output_tokens > 1]
        return cls(
            num_requests=outcome.requests,
            num_refused=outcome.requests - len(served),
            num_devices=num_devices,
            attainment=outcome.attainment,
            attainment_by_size=outcome.by_size,
            classes=_by_class(outcome),
            longest_wait_s=outcome.longest_wait_s,
            prefix_cache_hit_ratio=outcome.prefix_cache_hit_ratio,
            one_cache_hit_ratio=outcome.one_cache_hit_ratio,
            num_unsent=outcome.num_unsent,
            ttft=Distribution.of([result.wait_s for result in served]),
            tpot=Distribution.of([result.tpot_s for result in longer]),
            tbt=Distribution.of([result.tbt_s for result in longer]),
        )

    def document(self) -> Mapping[str, object]:
        return asdict(self)

    def tables(self, slo: Slo) -> RenderableType:
        latencies = Table("", title="Latency", title_justify="left")
        for name in ("mean", "p50", "p90", "p99", "max", "SLO"):
            latencies.add_column(name, justify="right")
        for name, found, target_s in (
            ("TTFT", self.ttft, slo.ttft_s),
            ("TPOT", self.tpot, slo.tpot_s),
            ("TBT", self.tbt, slo.tbt_s),
        ):
            figures = (found.mean, found.p50, found.p90, found.p99, found.max) if found else ()
            target = "none" if target_s is None else seconds(target_s)
            latencies.add_row(name, *(map(seconds, figures) if figures else [""] * 5), target)
        totals = Table.grid(padding=(0, 2))
        share = f"{self.attainment:.1%} met their targets"
        totals.add_row("attainment", Text(share, style="bold"))
        if self.attainment_by_size:
            by_size = ", ".join(f"{share:.1%}" for share in self.attainment_by_size)
            totals.add_row("by size", f"{by_size}, from the quarter with the fewest tokens on")
        for name, found in self.classes.items():
            totals.add_row(
                f"class {name}",
                f"{found.attainment:.1%} of {found.num_requests:,} requests within their targets, "
                f"longest wait {seconds(found.longest_wait_s)}",
            )
        totals.add_row("requests", f"{self.num_requests:,}, {self.num_refused:,} of them refused")
        if self.num_unsent:
            totals.add_row("not sent", f"{self.num_unsent:,} turns after those refused")
        totals.add_row("longest wait", seconds(self.longest_wait_s))
        totals.add_row("cache hits", f"{self.prefix_cache_hit_ratio:.1%} of the prompt tokens")
        if self.one_cache_hit_ratio is not None:
            share = f"{self.one_cache_hit_ratio:.1%}"
            totals.add_row(
                "one cache",
                f"{share} with one cache as large as all instances' together, in order of arrival",
            )
        totals.add_row("devices", f"{self.num_devices}")
        return Group(latencies, totals)
