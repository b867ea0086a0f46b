"""Report of a plan: a table, a plot and a manifest."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from macroserve.api.tuning import TuningSettings
from macroserve.sim.capacity.planning import Candidate

NUM_REQUESTS = 1000
MIB = 2**20
GPUS = "nvidia.com/gpu"
"""Resource of which an instance's pod claims one per rank."""

MARKERS = {1: "o", 2: "s", 4: "^", 8: "D"}
"""Plot marker by number of ranks; points are too close together for labels."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a candidate, from the load's rate and the price of a device."""

    rate: float
    """Requests per second."""
    price: float | None
    """Price of a device-hour; None if none was given."""

    def device_hours(self, candidate: Candidate) -> float:
        """Return the device-hours of ``NUM_REQUESTS`` requests."""
        return (candidate.num_devices or 0) * NUM_REQUESTS / self.rate / 3600

    def money(self, candidate: Candidate) -> float | None:
        return None if self.price is None else self.price * self.device_hours(candidate)


def table(tried: Sequence[Candidate], chosen: Candidate, cost: Cost, goal: float) -> Table:
    has_hits = any(candidate.prefix_cache_hit_ratio for candidate in tried)
    hits = "; hits: share of the prompt tokens in prefix caches" if has_hits else ""
    shown = Table(
        title="Candidates",
        title_justify="left",
        caption=f"hours and cost: for 1,000 requests{hits}",
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in ("devices", "instances", "TP"):
        shown.add_column(name, justify="right")
    shown.add_column("strategy", no_wrap=True, min_width=10)
    for name in ("HP", "cell", "attained", *(["hits"] if has_hits else []), "hours"):
        shown.add_column(name, justify="right")
    if cost.price is not None:
        shown.add_column("cost", justify="right")
    for candidate in tried:
        found = candidate.num_instances is not None
        cells = [
            str(candidate.num_devices) if found else f"> {candidate.upper_bound * candidate.ranks}",
            str(candidate.num_instances) if found else "-",
            str(candidate.ranks),
            candidate.scenario.strategy.name,
            f"{candidate.scenario.high_priority_ratio:.0%}",
            str(candidate.upper_bound),
            f"< {goal:.1%}" if candidate.attainment is None else f"{candidate.attainment:.1%}",
            *([f"{candidate.prefix_cache_hit_ratio:.0%}"] if has_hits else []),
            f"{cost.device_hours(candidate):.3g}" if found else "-",
        ]
        money = cost.money(candidate)
        if money is not None:
            cells.append(f"{money:.3g}" if found else "-")
        shown.add_row(*cells, style="bold green" if candidate == chosen else None)
    return shown


def document(candidate: Candidate, cost: Cost) -> dict[str, Any]:
    return {
        "strategy": candidate.scenario.strategy.name,
        "tensor_parallel": candidate.ranks,
        "instances": candidate.num_instances,
        "devices": candidate.num_devices,
        "high_priority_ratio": candidate.scenario.high_priority_ratio,
        "upper_bound": candidate.upper_bound,
        "attainment": candidate.attainment,
        "prefix_cache_hit_ratio": candidate.prefix_cache_hit_ratio,
        "device_hours_per_1000_requests": (
            None if candidate.num_instances is None else cost.device_hours(candidate)
        ),
        "cost_per_1000_requests": (
            None if candidate.num_instances is None else cost.money(candidate)
        ),
    }


def recommended(manifest: dict[str, Any], chosen: Candidate) -> dict[str, Any]:
    """Return the manifest changed to the chosen candidate."""
    changed = deepcopy(manifest)
    spec, num = changed["spec"], chosen.num_instances or 1
    spec["instances"] = num
    spec["engine"]["tensorParallel"] = chosen.ranks
    spec["engine"].pop("pipelineParallel", None)
    cluster = chosen.scenario.cluster
    cache_bytes = cluster.num_kv_tokens * cluster.shape.kv_bytes_per_token / chosen.ranks
    spec["engine"]["kvCacheMemory"] = f"{int(cache_bytes / MIB)}MiB"
    for container in spec.get("template", {}).get("spec", {}).get("containers", ()):
        limits = container.get("resources", {}).get("limits", {})
        if GPUS in limits:
            limits[GPUS] = chosen.ranks
    spec["mitosis"] = {
        "lowerBound": chosen.bounds.lower,
        "upperBound": chosen.bounds.upper,
    }
    scheduling = spec.setdefault("scheduling", {})
    scheduling["strategy"] = chosen.scenario.strategy.name
    if tuning := scheduling.get("tuning"):
        read = TuningSettings.read_by(chosen.scenario.strategy)
        scheduling["tuning"] = {name: value for name, value in tuning.items() if name in read}
    if chosen.scenario.strategy.uses_pools:
        ratio = round(chosen.scenario.high_priority_ratio, 2)
        spec.setdefault("priority", {})["highPriorityRatio"] = ratio
    if scaling := spec.get("autoscaling"):
        scaling["minInstances"] = min(scaling["minInstances"], num)
        scaling["maxInstances"] = max(scaling["maxInstances"], num)
    return changed


def plot(path: Path, tried: Sequence[Candidate], chosen: Candidate, goal: float) -> None:
    """Plot devices and attainment of the candidates that meet the goal. Needs matplotlib."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    kept = [candidate for candidate in tried if candidate.num_devices is not None]
    names = list(dict.fromkeys(candidate.scenario.strategy.name for candidate in kept))
    for name, ranks in dict.fromkeys((c.scenario.strategy.name, c.ranks) for c in kept):
        points = [c for c in kept if (c.scenario.strategy.name, c.ranks) == (name, ranks)]
        axes.plot(
            [c.num_devices or 0 for c in points],
            [c.attainment or 0.0 for c in points],
            MARKERS.get(ranks, "P"),
            color=f"C{names.index(name)}",
            label=f"{name}, TP{ranks}",
        )
    axes.plot(
        [chosen.num_devices or 0],
        [chosen.attainment or 0.0],
        "o",
        markersize=14,
        fillstyle="none",
        color="black",
        label="recommended",
    )
    axes.axhline(goal, color="#c23030", linestyle="--", label=f"goal {goal:.0%}")
    axes.set_xlabel("devices")
    axes.set_ylabel("attainment")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=1))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")
    figure.savefig(path, format="png", dpi=150)
