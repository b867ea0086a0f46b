"""Section 4.3: instances are added one by one as the rate rises."""

from dataclasses import dataclass
from random import Random
from statistics import mean

from macroserve.core.scaling.mitosis import Bounds
from macroserve.sim.growth import Growth
from macroserve.sim.router import FleetRouter
from macroserve.sim.scenario import Scenario
from macroserve.sim.simulation import Simulation
from macroserve.workload.arrivals import poisson
from macroserve.workload.datasets import WORKLOADS
from macroserve_lab.papers.ecoserve.cases import LEVELS, SCALED, experiments
from macroserve_lab.papers.figure import Figure, Line, Panel, Row
from macroserve_lab.papers.measurements import Measurement, Values

RISING_RATES = (20.0, 25.0, 30.0, 35.0, 40.0, 45.0, 50.0)
RISE_EVERY_S = 120.0
READ_EVERY_S = 30.0
FEWEST, MOST = 8, 16
"""Instances at first, and instances that all devices hold (section 4.3)."""

GROWING_BOUNDS = Bounds(4, 16)
"""Bounds of a cell; the paper's text does not give its own."""


@dataclass(frozen=True, slots=True)
class RisingRate:
    """The measurement is a fleet that grows under a rising rate, read at intervals."""

    key: str
    scenario: Scenario

    def measure(self, seed: int) -> Values:
        random = Random(seed)
        lengths = WORKLOADS[SCALED.workload].lengths(random)
        arrivals = poisson(RISING_RATES, RISE_EVERY_S, lengths, random)
        scenario = self.scenario
        spec = scenario.cluster.instance_spec(scenario.strategy, scenario.slo, seed=seed)
        fleet = FleetRouter(spec, FEWEST, GROWING_BOUNDS)
        growth = Growth(fleet, goal=LEVELS["P90"], interval_s=READ_EVERY_S, max_instances=MOST)
        Simulation(fleet, spec.config, control=growth).serve(arrivals, slo_rule=scenario.slo_rule)
        found: dict[str, float] = {}
        for reading in growth.readings:
            found[self.point("attainment", reading.at_s)] = reading.attainment
            found[self.point("instances", reading.at_s)] = reading.num_instances
        return found

    def line(self, metric: str, values: Values) -> list[tuple[float, float]]:
        """Return the metric, 'attainment' or 'instances', by seconds, while requests come."""
        num = int(RISE_EVERY_S * len(RISING_RATES) / READ_EVERY_S)
        times_s = [READ_EVERY_S * (1 + index) for index in range(num)]
        return [(at_s, values[self.point(metric, at_s)]) for at_s in times_s]

    def point(self, metric: str, at_s: float) -> str:
        """Return the key of a metric at a time; see ``line``."""
        return f"{self.key}, {metric} after {at_s:g} s"


GROWTHS = {
    variant: RisingRate(f"dynamic scaling {variant}", experiments(SCALED, variant)[0].scenario)
    for variant in ("ecoserve", "unified")
}


def measurements() -> list[Measurement]:
    return list(GROWTHS.values())


def rows(values: Values) -> list[Row]:
    """Return the readings. In the paper's plot, attainment falls with each rise of the rate and
    recovers with each new instance."""
    name = "dynamic-scaling"
    rows: list[Row] = []
    for variant, growth in GROWTHS.items():
        shares = [share for _, share in growth.line("attainment", values)]
        last = growth.line("instances", values)[-1][1]
        kept = mean(share >= LEVELS["P90"] for share in shares)
        for metric, ours in (
            ("instances at the end", last),
            ("readings at 90 % or more, of all", kept),
            ("mean attainment", mean(shares)),
            ("lowest attainment", min(shares)),
        ):
            rows.append(Row(name, "20 to 50 requests/s", variant, metric, ours, is_summary=True))
        for metric in ("attainment", "instances"):
            rows += [
                Row(name, f"after {at_s:g} s", variant, metric, ours)
                for at_s, ours in growth.line(metric, values)
            ]
    return rows


def panels(values: Values) -> list[Panel]:
    def lines(metric: str) -> dict[str, Line]:
        return {variant: growth.line(metric, values) for variant, growth in GROWTHS.items()}

    rates = [
        (RISE_EVERY_S * (index + after), rate)
        for index, rate in enumerate(RISING_RATES)
        for after in (0, 1)
    ]
    return [
        Panel("a rate that rises", "time in s", "requests/s", {"arrivals": rates}),
        Panel(
            "attainment", "time in s", "within their targets", lines("attainment"), is_share=True
        ),
        Panel("instances", "time in s", "instances", lines("instances")),
    ]


FIGURE = Figure(measurements, rows, panels=panels)
