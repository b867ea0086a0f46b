"""Compare what prefix caches find of a load with what one cache as large as all would find."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from macroserve.core.request import Slo
from macroserve.sim.results import AT_END
from macroserve.sim.rival_routing import Routing
from macroserve.sim.scenario import ClusterSpec, Scenario
from macroserve.workload.load import Load, LoadLimits, plan
from macroserve_lab.papers.figure import Figure, Row
from macroserve_lab.papers.measurements import Values
from macroserve_lab.papers.prefixes.entries import OWN, UNIFIED, scenario

COMPARED = (Routing.LEAST_LOAD.value, OWN, UNIFIED)
METRICS = ("attainment", "cache hits", "by one cache's")


@dataclass(frozen=True, slots=True)
class CacheHits:
    """The measurement is the attainment of a load, the share of its prompt tokens that the prefix
    caches had, and that by the share that one cache as large as all of them would have had.

    load: a load that says which prompts begin alike.
    duration_s: duration of the arrivals that count; an endless load needs one.
    warm_up_s: seconds of arrivals before those that count.
    """

    key: str
    scenario: Scenario
    load: Load
    duration_s: float = inf
    warm_up_s: float = 0.0

    def measure(self, seed: int) -> Values:
        arrivals = plan(self.load, LoadLimits(self.warm_up_s + self.duration_s), seed)
        num_before = sum([arrival.at_s < self.warm_up_s for arrival in arrivals])
        outcome = self.scenario.serve(arrivals, num_before=num_before, stop=AT_END, seed=seed)
        found, by_one = outcome.prefix_cache_hit_ratio, outcome.one_cache_hit_ratio
        # Where nothing comes twice, one cache finds no more.
        values = (outcome.attainment, found, found / by_one if by_one else 1.0)
        return dict(zip(map(self.point, METRICS), values, strict=True))

    def point(self, metric: str) -> str:
        """Return the key of one of ``METRICS``."""
        return f"{self.key}, {metric}"


@dataclass(frozen=True, slots=True)
class Case:
    """A case is a load on a cluster, served by each of the entries ``COMPARED``.

    load, duration_s, warm_up_s: see ``CacheHits``.
    """

    name: str
    cluster: ClusterSpec
    slo: Slo
    load: Load
    duration_s: float = inf
    warm_up_s: float = 0.0

    def measurement(self, figure: str, entry: str) -> CacheHits:
        return CacheHits(
            f"{figure}, {self.name}, {entry}",
            scenario(self.cluster, self.slo, entry),
            self.load,
            self.duration_s,
            self.warm_up_s,
        )


def figure_of(name: str, cases: Sequence[Case]) -> Figure:
    """Return the figure ``name`` that serves each case by each entry."""
    measured = [
        (case, entry, case.measurement(name, entry)) for case in cases for entry in COMPARED
    ]
    return Figure(
        lambda: [measurement for _, _, measurement in measured],
        lambda values: [
            Row(name, case.name, entry, metric, values[hits.point(metric)], is_summary=True)
            for case, entry, hits in measured
            for metric in METRICS
        ],
    )
