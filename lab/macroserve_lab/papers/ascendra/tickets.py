"""Utilization of the HP instance under a light load, with tickets and without (section 6.1)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from macroserve.core.routing.constraints import Demand
from macroserve.core.routing.decision import Choice, RouteReason
from macroserve.core.routing.policies import ascendra_route, split_pools
from macroserve.core.status import InstanceView, Pool
from macroserve.core.strategies import STRATEGIES
from macroserve.sim.instance import StepOutcome
from macroserve.sim.results import AT_END
from macroserve.sim.simulation_trace import SimulationTrace
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.ascendra.cases import CHAT, DURATION_S, experiment, pools_of
from macroserve_lab.papers.figure import Figure, Row
from macroserve_lab.papers.measurements import Measurement, Values

RATES = (1.0, 3.0, 6.0, 9.0)
"""Requests per second, an assumption: the paper says "light workload". Ascendra holds all."""

MOST_POINTS = 50.0
"""Gain in utilization, "up to 50%" (section 6.1), read as percentage points: without tickets the
instance may have nothing to do at all."""


def _without_tickets(candidates: Sequence[InstanceView], demand: Demand) -> Choice:
    if demand.offloaded:
        return ascendra_route(candidates, demand)
    low, _ = split_pools(candidates)
    return low[0], RouteReason.ROUND_ROBIN


STRATEGY = STRATEGIES["ascendra"]
VARIANTS = {"with tickets": STRATEGY, "without": replace(STRATEGY, route=_without_tickets)}


class _Busy(SimulationTrace):
    """The trace sums the seconds of each instance's batches."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = defaultdict[str, float](float)
        self.end_s = 0.0

    def stepped(self, instance: str, outcome: StepOutcome) -> None:
        self.seconds[instance] += outcome.end_s - outcome.start_s
        self.end_s = max(self.end_s, outcome.end_s)


@dataclass(frozen=True, slots=True)
class Utilization:
    """The measurement is the share of the time in which the HP instances run batches, and the share
    of the requests that meet their targets.

    rate: requests per second.
    """

    key: str
    experiment: Experiment
    rate: float
    duration_s: float

    def measure(self, seed: int) -> Values:
        busy, pools = _Busy(), pools_of(self.experiment)
        outcome = self.experiment.serve(
            self.rate, self.duration_s, stop=AT_END, seed=seed, trace=busy
        )
        high = [instance for instance, pool in pools.items() if pool is Pool.HP]
        high_s = sum(busy.seconds[instance] for instance in high)
        return {self.busy: high_s / (len(high) * busy.end_s), self.attained: outcome.attainment}

    @property
    def busy(self) -> str:
        return f"{self.key}, HP utilization"

    @property
    def attained(self) -> str:
        return f"{self.key}, attainment"


MEASURED = {
    (name, rate): Utilization(f"tickets {name} {rate:g}", experiment(CHAT, each), rate, DURATION_S)
    for name, each in VARIANTS.items()
    for rate in RATES
}


def measurements() -> list[Measurement]:
    return list(MEASURED.values())


def rows(values: Values) -> list[Row]:
    found: list[Row] = []
    gains: list[float] = []
    for rate in RATES:
        case = f"{rate:g} requests/s"
        points = {name: 100 * values[MEASURED[name, rate].busy] for name in VARIANTS}
        gains.append(points["with tickets"] - points["without"])
        for name in VARIANTS:
            each = MEASURED[name, rate]
            found += [
                Row("tickets", case, name, "HP utilization in %", points[name], is_summary=True),
                Row("tickets", case, name, "attainment", values[each.attained], is_summary=True),
            ]
    most = Row(
        "tickets", "all rates", "gain by tickets", "points, at most", max(gains), MOST_POINTS
    )
    return [*found, most]


ALWAYS_ACTIVE = (
    "Here an instance counts as used while it runs a batch, and a single response keeps it "
    "running: with tickets it nearly always does, at any of these rates. The paper does not say "
    'what it measures; the purpose of tickets is "to keep the GPU active".'
)

FIGURE = Figure(measurements, rows, ALWAYS_ACTIVE)
