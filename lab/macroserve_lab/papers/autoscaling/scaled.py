"""An autoscaled fleet under a load whose rate changes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from macroserve.core.request import Slo
from macroserve.core.scaling.autoscale import Limits
from macroserve.core.strategies import STRATEGIES
from macroserve.sim.autoscaling.goals import Goals
from macroserve.sim.autoscaling.run import AutoscaledScenario
from macroserve.sim.autoscaling.start_up import StartUp
from macroserve.sim.autoscaling.timeline import Moment
from macroserve.sim.hardware.devices import H100
from macroserve.sim.hardware.links import NVLINK_4
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.scenario import ClusterSpec, Scenario
from macroserve_lab.papers.autoscaling.loads import ChangingLoad
from macroserve_lab.papers.figure import Panel
from macroserve_lab.papers.measurements import Values, point

START_S = 100.0
"""Time of a start in llm-d's benchmark, seconds."""

GOAL = 0.99
DOWN_S = 60.0
"""Window for scaling down, seconds."""

EVERY_S = 30.0
"""Time from one point of a plotted line to the next, seconds."""

METRICS = (
    "attainment",
    "mean instances",
    "mean instances that serve",
    "scale-ups",
    "scale-downs",
    "flaps",
    "failed starts",
)


def fleet(
    least: int = 3,
    most: int = 8,
    *,
    start_s: float = START_S,
    failing_share: float = 0.0,
    down_s: float = DOWN_S,
) -> AutoscaledScenario:
    """Return Qwen3-32B on pairs of H100, with llm-d's targets, 3 s and 100 ms."""
    cluster = ClusterSpec(
        MODELS["Qwen3-32B"], H100, NVLINK_4, ranks=2, num_instances=least, max_model_len=16384
    )
    scenario = Scenario(cluster, STRATEGIES["unified"], Slo(3.0, 0.1))
    start_up = StartUp(start_s, failing_share=failing_share)
    return AutoscaledScenario(scenario, Limits(least, most, 0.0, down_s), start_up, Goals(GOAL))


@dataclass(frozen=True, slots=True)
class Scaled:
    """An autoscaled fleet under a load."""

    key: str
    fleet: AutoscaledScenario
    load: ChangingLoad

    def measure(self, seed: int) -> Values:
        result, timeline = self.fleet.serve(self.load.arrivals(seed), seed=seed)
        figures = (
            result.attainment,
            timeline.mean_existing,
            timeline.mean_ready,
            timeline.num_ups,
            timeline.num_downs,
            timeline.num_flaps,
            timeline.num_failed,
        )
        found = {point(self.key, name): value for name, value in zip(METRICS, figures, strict=True)}
        for index in range(int(timeline.end_s / EVERY_S) + 1):
            at_s = EVERY_S * index
            moment = _at(timeline.moments, at_s)
            found[point(self.key, f"wanted at {at_s:g} s")] = moment.wanted
            found[point(self.key, f"serving at {at_s:g} s")] = moment.ready
        return found

    def line(self, name: str, values: Values) -> list[tuple[float, float]]:
        """Return the instances by seconds; ``name`` is 'wanted' or 'serving'."""
        points: list[tuple[float, float]] = []
        while (key := point(self.key, f"{name} at {EVERY_S * len(points):g} s")) in values:
            points.append((EVERY_S * len(points), values[key]))
        return points

    def panel(self, title: str, values: Values) -> Panel:
        lines = {name: self.line(name, values) for name in ("wanted", "serving")}
        return Panel(title, "time in s", "instances", lines)


def rates(arrivals_s: Iterable[float], every_s: float = EVERY_S) -> list[tuple[float, float]]:
    """Return the requests per second of each stretch of a load, by its start in seconds."""
    counts: dict[int, int] = {}
    for at_s in arrivals_s:
        counts[int(at_s / every_s)] = counts.get(int(at_s / every_s), 0) + 1
    return [(index * every_s, counts.get(index, 0) / every_s) for index in range(max(counts) + 1)]


def _at(moments: Sequence[Moment], at_s: float) -> Moment:
    """Return the last moment that is not after a time."""
    return [each for each in moments if each.at_s <= at_s][-1]
