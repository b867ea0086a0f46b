"""EcoServe's figures (section 4)."""

from dataclasses import dataclass, replace
from random import Random
from statistics import mean

from macroserve.core.request import Slo
from macroserve.core.scaling.mitosis import Bounds
from macroserve.sim.router import FleetRouter
from macroserve.sim.scenario import Scenario
from macroserve.sim.simulation import Simulation
from macroserve.workload.arrivals import poisson
from macroserve.workload.datasets import WORKLOADS
from macroserve_lab.growth import Growth
from macroserve_lab.papers.ecoserve.cases import (
    BY_PERCENTILE,
    CASES,
    DURATION_S,
    FUDG,
    LEVELS,
    LOWEST,
    NODG,
    SCALED,
    SLOS,
    STRATEGY_NAMES,
    VARIANTS,
    Case,
    experiments,
)
from macroserve_lab.papers.figure import Claim, Figure, Panel, Table, annotated
from macroserve_lab.papers.measurements import BestOf, Curve, Goodput, Percentiles, Values, point
from macroserve_lab.papers.sweep import (
    GAIN,
    LOWEST_TRIED,
    TIMES,
    Plot,
    Sweep,
    attainment_plot,
    curves_table,
)

# Section 4.2: goodput of PaDG against systems that do not disaggregate, or fully.

GAINS: dict[str, dict[str, float | None]] = {
    "P90": {"prefill-first": 83.76, "sarathi": 71.97, "distserve": 192.41, "mooncake": 218.22},
    "P50": {"prefill-first": 36.49, "sarathi": 19.82, "distserve": 180.73, "mooncake": 194.62},
    "P99": dict.fromkeys((*NODG, *FUDG)),
}
"""Gains of EcoServe's goodput in percent, averaged over all cases (section 4.2). At P99 the paper
says that they grow further, and that some baselines attain it at no rate."""

KINDS = {"NoDG": [*NODG], "FuDG": [*FUDG]}
GAINS_BY = {
    "model": {
        "Llama-30B": (65.00, 507.67),
        "CodeLlama-34B": (83.30, 125.45),
        "Qwen2-72B": (85.30, 83.61),
    },
    "cluster": {"L20": (84.33, 124.86), "A800": (71.41, 285.78)},
    "workload": {
        "Alpaca-gpt4": (10.44, 74.80),
        "ShareGPT": (20.60, 363.10),
        "LongBench": (202.57, 164.42),
    },
}
"""Gains at P90 in percent over the average of both NoDG systems, and of both FuDG systems."""

OURS = ("ecoserve", BY_PERCENTILE)
"""EcoServe as the paper's text describes it, and a variant that explains the paper's figures."""

FLOORED = {"least": LOWEST_TRIED, "least_ours": True}


def _goodput(level: str, case: Case, system: str) -> BestOf:
    key = case.key(level, system)
    duration_s, lowest = DURATION_S[case.workload], LOWEST[case.workload]
    searches = [
        Goodput(f"{key}, {number}", each, LEVELS[level], duration_s, lowest)
        for number, each in enumerate(experiments(case, system))
    ]
    return BestOf(key, tuple(searches))


HELD = Sweep(
    _goodput,
    lambda level, case, system: level == "P90" or system in STRATEGY_NAMES,
    level=LEVELS,
    case=CASES,
    system=VARIANTS,
)


def _num_without(system: str) -> Claim:
    keys = [case.key("P99", system) for case in CASES]
    return Claim(
        "P99, cases without goodput",
        system,
        f"cases of {len(CASES)}",
        lambda values: sum(values[key] == 0 for key in keys),
        is_summary=True,
    )


GOODPUT = Figure(
    HELD.values(),
    [
        HELD.over(
            GAIN,
            f"{level}, all cases",
            variant,
            {baseline: paper},
            is_summary=True,
            level=level,
            **FLOORED,
        )
        for level, gains in GAINS.items()
        for baseline, paper in gains.items()
        for variant in (OURS if level == "P90" else OURS[:1])
    ]
    + [_num_without(system) for system in STRATEGY_NAMES]
    + [
        Claim(
            f"P90, {group}",
            f"{variant} over {kind}",
            GAIN.metric,
            HELD.compare(
                GAIN,
                variant,
                baselines,
                level="P90",
                case=[case for case in CASES if getattr(case, name) == group],
                **FLOORED,
            ),
            paper,
        )
        for name, groups in GAINS_BY.items()
        for group, papers in groups.items()
        for (kind, baselines), paper in zip(KINDS.items(), papers, strict=True)
        for variant in OURS
    ]
    + HELD.table(
        "{level}, {case.cluster}, {case.model}, {case.workload}", "{system}", "requests/s"
    ),
)

# Figure 8 shows such curves: attainment over the rate, and latencies at one rate.

CURVE_RATES = (5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 45.0, 50.0)
SPREAD_RATE = 15.0
"""Rate at which all strategies but the disaggregated ones still attain most requests."""

CURVED = (*STRATEGY_NAMES, "unified")
CURVES = Sweep(
    lambda system: Curve(
        f"attainment {system}",
        experiments(SCALED, system)[-1],
        CURVE_RATES,
        DURATION_S[SCALED.workload],
    ),
    system=CURVED,
)
SPREADS = Sweep(
    lambda system: Percentiles(
        f"latencies {system}", CURVES[system].experiment, SPREAD_RATE, DURATION_S[SCALED.workload]
    ),
    system=CURVED,
)
ATTAINMENT = Figure(
    [*CURVES.values(), *SPREADS.values()],
    curves_table(CURVES),
    [
        attainment_plot(CURVES, f"{SCALED.model}, {SCALED.workload}, {SCALED.cluster}"),
        *[
            Plot(
                SPREADS,
                f"{SPREAD_RATE:g} requests/s",
                f"{latency} in s",
                "of the requests",
                lambda spread, values, latency=latency: spread.line(latency, values),
                is_share=True,
            )
            for latency in ("TTFT", "TPOT")
        ],
    ],
)

# Section 4.3: goodput of more and more instances under one cell scheduler.

LARGER = replace(SCALED, model="Qwen2-72B")
SIZES = {SCALED: (1, 2, 4, 8), LARGER: (1, 2, 4)}
"""Numbers of instances, by case, up to the devices' capacity."""

GAINS_OF_FOUR = {SCALED: 5.6, LARGER: None}
"""Factor by which four instances serve more than one (section 4.3); of the larger model the paper
says only that it is above four."""


def _of_size(case: Case, system: str, size: int) -> Goodput:
    return Goodput(
        f"static scaling {case.model} {system} {size}",
        experiments(case, system, size)[0],
        LEVELS["P90"],
        DURATION_S[case.workload],
        LOWEST[case.workload] / 4,
    )


SCALING = Sweep(
    _of_size,
    lambda case, system, size: size in SIZES[case],
    case=SIZES,
    system=("ecoserve", "prefill-first"),
    size=SIZES[SCALED],
)
STATIC_SCALING = Figure(
    SCALING.values(),
    [
        Claim(
            f"{case.model}, 4 instances over 1",
            system,
            TIMES.metric,
            SCALING.compare(TIMES, 4, 1, axis="size", case=case, system=system),
            paper,
            is_summary=True,
        )
        for case, printed in GAINS_OF_FOUR.items()
        for system, paper in (("ecoserve", printed), ("prefill-first", None))
    ]
    + SCALING.table("{case.model}, {size} instances", "{system}", "requests/s"),
    [Plot(SCALING, "static scaling, {case.model}", "instances", "requests/s at P90", "size")],
)

# Section 4.3: instances are added one by one as the rate rises.

RISING_RATES = (20.0, 25.0, 30.0, 35.0, 40.0, 45.0, 50.0)
RISE_EVERY_S = 120.0
READ_EVERY_S = 30.0
FEWEST, MOST = 8, 16
"""Instances at first, and instances that all devices hold (section 4.3)."""

GROWING_BOUNDS = Bounds(4, 16)
"""Bounds of a cell; the paper's text does not give its own."""


def _read_at_s() -> list[float]:
    """Return the seconds of all readings while requests come."""
    num = int(RISE_EVERY_S * len(RISING_RATES) / READ_EVERY_S)
    return [READ_EVERY_S * (1 + index) for index in range(num)]


@dataclass(frozen=True, slots=True)
class RisingRate:
    """Attainment and instances of a fleet that grows under a rising rate, read at intervals."""

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
        return [(at_s, values[self.point(metric, at_s)]) for at_s in _read_at_s()]

    def point(self, metric: str, at_s: float) -> str:
        return point(self.key, f"{metric} after {at_s:g} s")

    def shares(self, values: Values) -> list[float]:
        return [share for _, share in self.line("attainment", values)]


RISING = Sweep(
    lambda system: RisingRate(f"dynamic scaling {system}", experiments(SCALED, system)[0].scenario),
    system=("ecoserve", "unified"),
)


def _rising(system: str) -> Table:
    """Return the readings. In the paper's plot, attainment falls with each rise of the rate and
    recovers with each new instance."""
    rising = RISING[system]
    summaries = {
        "instances at the end": lambda values: rising.line("instances", values)[-1][1],
        "readings at 90 % or more, of all": lambda values: mean(
            share >= LEVELS["P90"] for share in rising.shares(values)
        ),
        "mean attainment": lambda values: mean(rising.shares(values)),
        "lowest attainment": lambda values: min(rising.shares(values)),
    }
    return [
        Claim("20 to 50 requests/s", system, metric, ours, is_summary=True)
        for metric, ours in summaries.items()
    ] + [
        RISING.table(
            f"after {at_s:g} s",
            "{system}",
            metric,
            of=(f"{metric} after {at_s:g} s",),
            system=system,
        )
        for metric in ("attainment", "instances")
        for at_s in _read_at_s()
    ]


def _rises(values: Values) -> list[Panel]:
    rates = [
        (RISE_EVERY_S * (index + after), rate)
        for index, rate in enumerate(RISING_RATES)
        for after in (0, 1)
    ]
    return [Panel("a rate that rises", "time in s", "requests/s", {"arrivals": rates})]


DYNAMIC_SCALING = Figure(
    RISING.values(),
    [_rising(system) for system in ("ecoserve", "unified")],
    [
        _rises,
        *[
            Plot(
                RISING,
                metric,
                "time in s",
                label,
                lambda rising, values, metric=metric: rising.line(metric, values),
                is_share=metric == "attainment",
            )
            for metric, label in (
                ("attainment", "within their targets"),
                ("instances", "instances"),
            )
        ],
    ],
)

# Section 4.4: the same devices as pipelines, and with every layer shared.

TPOTS_MS = (100, 200, 300, 400, 500)
"""TPOT targets in milliseconds (section 4.4); pipelines make no single step faster."""

SHARED = "TP4"
PIPELINED = "TP1, PP4"
LAYOUTS = {SHARED: {"ranks": 4, "stages": 1}, PIPELINED: {"ranks": 1, "stages": 4}}


LAID_OUT_SYSTEMS = ("ecoserve", "prefill-first", "sarathi", "unified")


def _laid_out(tpot_ms: float, layout: str, system: str) -> Goodput:
    (experiment,) = experiments(SCALED, system)
    cluster = replace(experiment.scenario.cluster, **LAYOUTS[layout])
    slo = Slo(SLOS[SCALED.workload].ttft_s, tpot_ms / 1e3)
    return Goodput(
        f"pipeline {system} {layout} {tpot_ms / 1e3:g} s",
        replace(experiment, scenario=replace(experiment.scenario, cluster=cluster, slo=slo)),
        LEVELS["P90"],
        DURATION_S[SCALED.workload],
        LOWEST[SCALED.workload],
    )


LAID_OUT = Sweep(_laid_out, tpot_ms=TPOTS_MS, layout=LAYOUTS, system=LAID_OUT_SYSTEMS)
PIPELINES = Figure(
    LAID_OUT.values(),
    [
        Claim(
            f"TPOT {tpot_ms} ms",
            f"{system}, {PIPELINED} over {SHARED}",
            TIMES.metric,
            LAID_OUT.compare(
                TIMES,
                PIPELINED,
                SHARED,
                axis="layout",
                least=LOWEST_TRIED,
                tpot_ms=tpot_ms,
                system=system,
            ),
            is_summary=True,
        )
        for tpot_ms in TPOTS_MS
        for system in LAID_OUT_SYSTEMS
    ]
    + LAID_OUT.table("TPOT {tpot_ms} ms", "{system}, {layout}", "requests/s"),
    [
        Plot(
            LAID_OUT,
            "pipelines",
            "TPOT target in ms",
            "requests/s at P90",
            "tpot_ms",
            "{system}, {layout}",
        )
    ],
)

FIGURES = annotated(
    __name__,
    {
        "goodput": GOODPUT,
        "attainment": ATTAINMENT,
        "static-scaling": STATIC_SCALING,
        "dynamic-scaling": DYNAMIC_SCALING,
        "pipelines": PIPELINES,
    },
)
