"""EconoServe's figures (sections 2 and 4)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean
from typing import Any

from macroserve.core.scheduler.batching.baselines import chunked_batch
from macroserve.core.strategy import Ordering
from macroserve.core.tuning import DEFAULT_TUNING, Tuning
from macroserve.sim.hardware.devices import H100
from macroserve_lab.disaggregation.scenario import DisaggregatedScenario
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.econoserve.cases import (
    DISTSERVE,
    FASTSERVE,
    MODELS,
    MULTIRES,
    NO_LENDING,
    ORCA,
    RATES,
    SCALE,
    SRTF,
    SYNC_COUPLED,
    TRACES,
    VARIANTS,
    WITH_ALL,
    Model,
    Trace,
    Variant,
    cluster,
    experiment,
    targets,
)
from macroserve_lab.papers.econoserve.completed import Completed
from macroserve_lab.papers.econoserve.overhead import Overhead
from macroserve_lab.papers.figure import Claim, Figure, Panel, Quantity, Table, annotated
from macroserve_lab.papers.measurements import (
    Attainment,
    Curve,
    FewestInstances,
    Goodput,
    Metric,
    RateAtLatency,
    Served,
    Values,
)
from macroserve_lab.papers.sweep import (
    GAIN,
    LOWEST_TRIED,
    POINTS,
    TIMES,
    Comparison,
    Plot,
    Sweep,
    curves_table,
    reading,
)

OPT_13B, LLAMA_33B, OPT_175B = MODELS
SHAREGPT = TRACES[1]

# Figure 9: rates held at equal normalized latency.

LATENCY_S = 0.2
"""Normalized latency, seconds per token: where all curves of the paper rise steeply."""

RATE_SYSTEMS = {**VARIANTS, "distserve": DISTSERVE, "orca": ORCA}
"""Systems by name; DistServe has two instances, all others have one."""

HELD = Sweep(
    lambda model, trace, system: RateAtLatency(
        f"rate {model.name} {trace.workload} {system}",
        experiment(model, trace, RATE_SYSTEMS[system]),
        LATENCY_S,
        trace.duration_s,
        trace.lowest,
    ),
    model=MODELS,
    trace=TRACES,
    system=RATE_SYSTEMS,
)


def _rates(model: Model, trace: Trace) -> Table:
    """Return the rows of a case, with the middle of the paper's printed range as its value."""
    papers = {
        "prefill-first": trace.over_vllm,
        "sarathi": trace.over_sarathi,
        "distserve": trace.over_distserve,
        "orca": trace.over_orca,
    }
    case = f"{model.name}, {trace.workload}"
    return HELD.over(
        TIMES,
        case,
        "econoserve",
        {name: sum(printed) / 2 for name, printed in papers.items()},
        least=LOWEST_TRIED,
        model=model,
        trace=trace,
    ) + HELD.table(case, "{system}", "requests/s", model=model, trace=trace)


RATE = Figure(HELD.values(), [_rates(*case) for case in product(MODELS, TRACES)])

# One plot of figure 9: normalized latency over the rate.

CURVE_RATES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0)
CURVES = Sweep(
    lambda system: Curve(
        f"latency {system}",
        experiment(OPT_13B, SHAREGPT, VARIANTS[system]),
        CURVE_RATES,
        SHAREGPT.duration_s,
        Metric.NORMALISED_LATENCY,
    ),
    system=VARIANTS,
)


def _until_twice_the_limit(curve: Curve, values: Values) -> list[tuple[float, float]]:
    # Above it a curve only goes on rising.
    return [(rate, value) for rate, value in curve.line(values) if value < 2 * LATENCY_S]


LATENCY = Figure(
    CURVES.values(),
    curves_table(CURVES),
    [
        Plot(
            CURVES,
            f"{OPT_13B.name}, {SHAREGPT.workload}",
            "requests/s",
            "normalised latency in s per token",
            _until_twice_the_limit,
        )
    ],
)

# Figure 11: how full the cache is, and how much of the compute is used, over the rate.

USE_RATES = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0)
"""Rates in requests per second. The paper's go from 0.2 to 36; beyond the last rate here the queues
would grow without end."""

USE_SYSTEMS = {
    "orca": ORCA,
    "distserve": DISTSERVE,
    **{name: VARIANTS[name] for name in ("prefill-first", "sarathi", "econoserve")},
}
USE_BASELINES = ("distserve", "sarathi", "prefill-first", "orca")
MORE_CACHE = {
    "OPT-13B": (29.0, 18.0, 27.0, 39.0),
    "Llama-33B": (25.0, 13.0, 22.0, 34.0),
    "OPT-175B": (22.0, 12.0, 21.0, 32.0),
}
MORE_COMPUTE = {
    "OPT-13B": (16.0, 19.0, 28.0, 39.0),
    "Llama-33B": (14.0, 17.0, 26.0, 35.0),
    "OPT-175B": (12.0, 17.0, 22.0, 31.0),
}
"""Percentage points by which EconoServe's utilization is higher than that of each baseline, in the
mean of all rates."""

USES = Sweep(
    lambda model, system, rate: Served(
        f"utilisation {model.name} {system} at {rate:g} requests/s",
        experiment(model, SHAREGPT, USE_SYSTEMS[system]),
        rate,
        SHAREGPT.duration_s,
        (Metric.KV_USE, Metric.FORWARD_TOKENS),
    ),
    model=MODELS,
    system=USE_SYSTEMS,
    rate=USE_RATES,
)


def _whole(**cell: Any) -> float:
    return 1.0


def _peak_share(model: Model, **cell: Any) -> float:
    """Return the share of the devices' peak operations that one token per second of an instance
    takes."""
    spec = cluster(model)
    return 2 * spec.shape.active_parameters / (model.ranks * spec.device.roof.flops_per_s)


RESOURCES = {
    "the cache": (Metric.KV_USE, _whole, MORE_CACHE, "cache that holds tokens"),
    "the compute": (Metric.FORWARD_TOKENS, _peak_share, MORE_COMPUTE, "peak operations in use"),
}
"""Metric of a resource, the factor from it to the share in use, the paper's points, and a label."""

UTILISATION = Figure(
    USES.values(),
    [
        USES.over(
            POINTS.scaled(f"points of {resource}", share(model=model)),
            f"{model.name}, {SHAREGPT.workload}",
            "econoserve",
            dict(zip(USE_BASELINES, printed[model.name], strict=True)),
            of=metric,
            model=model,
        )
        for resource, (metric, share, printed, _) in RESOURCES.items()
        for model in MODELS
    ]
    + [
        USES.table(
            "{model.name}, {rate:g} requests/s",
            "{system}",
            f"share of {resource}",
            of=(metric,),
            scale=share(model=model),
            model=model,
        )
        for resource, (metric, share, _, _) in RESOURCES.items()
        for model in MODELS
    ],
    [
        Plot(
            USES,
            f"{{model.name}}, {SHAREGPT.workload}",
            "requests/s",
            label,
            "rate",
            of=metric,
            scale=share,
            is_share=True,
        )
        for metric, share, _, label in RESOURCES.values()
    ],
)

# Figure 12: devices with which the goodput of DistServe is held.

LEVEL = 0.9
NUM_INSTANCES = 16
"""Instances of DistServe. The paper has as many of OPT-13B, on two machines, fewer of others."""

NUM_PREFILL, NUM_DECODE = 4, 8
"""H100s that prefill and A100s that decode, each on a machine of their own (section 4.2)."""

SMALL = Model("Llama3.1-8B", 1, None)
"""Model of the large-scale simulation. Its shape is that of the paper's Llama-3-8B."""

SMALL_S = 30.0


def _equal(model: Model, slo_rule: Completed) -> Experiment:
    return experiment(model, SHAREGPT, DISTSERVE, NUM_INSTANCES, slo_rule)


def _with_h100s(model: Model, slo_rule: Completed) -> Experiment:
    """Return DistServe with prefills on the H100s of one node.

    Nodes are of equal size here, so that the decodes lie on two; all caches leave by one link
    either way. The links between the devices of an instance are those of the A100s.
    """
    num_prefill, num_decode = NUM_PREFILL // model.ranks, NUM_DECODE // model.ranks
    found = experiment(model, SHAREGPT, DISTSERVE, num_prefill + num_decode, slo_rule)
    scenario = found.scenario
    assert isinstance(scenario, DisaggregatedScenario), "DistServe sends caches"
    scenario = replace(
        scenario,
        high_priority_ratio=num_prefill / (num_prefill + num_decode),
        topology=replace(scenario.topology, instances_per_node=num_prefill),
        prefill_device=H100,
    )
    return replace(found, scenario=scenario)


DEVICES = {"homogeneous": _equal, "heterogeneous": _with_h100s, "large": _equal}
"""DistServe's cluster, whose goodput EconoServe is to hold on A100s, under an SLO rule."""

FEWER = {
    ("homogeneous", OPT_13B): 73.0,
    ("homogeneous", OPT_175B): 58.0,
    ("homogeneous", LLAMA_33B): 67.0,
    # The weights of OPT-175B, 350 GB, do not fit four devices of 80 GB.
    ("heterogeneous", OPT_13B): 61.0,
    ("heterogeneous", LLAMA_33B): 57.0,
    ("large", SMALL): 77.0,
}
"""Percent of DistServe's devices that EconoServe saves."""


def _fewest(setting: tuple[str, Model]) -> FewestInstances:
    name, model = setting
    slo_rule = Completed.of(model, SHAREGPT)
    theirs = DEVICES[name](model, slo_rule)
    key = f"devices {name} {model.name}"
    duration_s = SMALL_S if name == "large" else SHAREGPT.duration_s
    goodput = Goodput(f"{key} distserve", theirs, LEVEL, duration_s, SHAREGPT.lowest)
    ours = tuple(
        experiment(model, SHAREGPT, WITH_ALL, num, slo_rule)
        for num in range(1, theirs.scenario.cluster.num_instances + 1)
    )
    return FewestInstances(f"{key} econoserve", goodput, ours)


FEWEST = Sweep(_fewest, setting=FEWER)


def fewer(found: FewestInstances) -> Quantity:
    return lambda values: 100 * (1 - values[found.key] / len(found.experiments))


DEVICES_FIGURE = Figure(
    FEWEST.values(),
    [
        Claim(
            f"{model.name}, {name}",
            "econoserve for distserve",
            "% fewer",
            fewer(FEWEST[name, model]),
            paper,
        )
        for (name, model), paper in FEWER.items()
    ]
    + [
        Claim(
            f"{model.name}, {name}",
            "distserve",
            "requests/s",
            reading(FEWEST[name, model].goodput.key),
        )
        for name, model in FEWER
    ],
)

# Figure 13: what each part saves of the time, and adds to the requests in time and served.

SYNCED = replace(NO_LENDING.strategy, ordering=Ordering.FCFS)
DECOUPLED = replace(SYNCED, group_by_length=False)
COUPLED = replace(DECOUPLED, batch=chunked_batch, queues_responses=False)
"""Strategy that begins a prompt only when there is memory for its response, too."""

ABLATED = {
    "coupled": replace(NO_LENDING, strategy=COUPLED),
    "decoupled": replace(NO_LENDING, strategy=DECOUPLED),
    "synced": replace(NO_LENDING, strategy=SYNCED),
    "ordered": NO_LENDING,
    "with all": WITH_ALL,
}
"""Variants, each with one part more than the one before."""

PARTS = {
    "decoupling": ("decoupled", "coupled"),
    "synced batching": ("synced", "decoupled"),
    "ordering": ("ordered", "synced"),
    "KV pipelining": ("with all", "ordered"),
}
"""Variant with each part, and variant without it."""

PRINTED = {
    Metric.COMPLETION: {
        "decoupling": 28.0,
        "synced batching": 19.0,
        "ordering": 7.0,
        "KV pipelining": 29.0,
    },
    Metric.TPOT: {"synced batching": 17.0, "ordering": 5.0, "KV pipelining": 21.0},
    Metric.ATTAINMENT: {"synced batching": 16.0, "ordering": 21.0, "KV pipelining": 17.0},
    Metric.THROUGHPUT: {"synced batching": 36.0, "ordering": 17.0, "KV pipelining": 62.0},
}
"""Percent of the larger value by which each part lowers the first two and raises the last two, in
the mean of all models and traces (section 4.2)."""

SAVED = Comparison("% less", lambda ours, theirs: 100 * (1 - ours / theirs))
ADDED = Comparison("% more", lambda ours, theirs: 100 * (1 - theirs / ours))
CHANGES = dict(zip(PRINTED, (SAVED, SAVED, ADDED, ADDED), strict=True))

MEAN_TBT_S = 0.141
"""Mean time between tokens with all parts in the paper, seconds."""

LEAST = 1e-3
"""Share in time that stands for any smaller one."""

ABLATION_RUNS = Sweep(
    lambda model, trace, system: Served(
        f"ablation {model.name} {trace.workload} {system}",
        experiment(model, trace, ABLATED[system], slo_rule=Completed.of(model, trace)),
        RATES[model.name][trace.workload],
        trace.duration_s,
        tuple(PRINTED),
    ),
    model=MODELS,
    trace=TRACES,
    system=ABLATED,
)


def _part(case: str, part: str, metric: Metric, paper: float | None = None, **cells: Any) -> Claim:
    change = CHANGES[metric]
    gained = ABLATION_RUNS.compare(
        change, *PARTS[part], of=metric, least=LEAST, least_ours=True, **cells
    )
    return Claim(case, part, f"{change.metric} {metric}", gained, paper)


ABLATION = Figure(
    ABLATION_RUNS.values(),
    [
        *[
            _part("all models and traces", part, metric, paper)
            for metric, printed in PRINTED.items()
            for part, paper in printed.items()
        ],
        Claim(
            "all models and traces",
            "with all",
            Metric.TPOT,
            ABLATION_RUNS.pooled(mean, Metric.TPOT, system="with all"),
            MEAN_TBT_S,
        ),
        *[
            _part(f"{model.name}, {trace.workload}", part, metric, model=model, trace=trace)
            for model, trace in product(MODELS, TRACES)
            for metric in PRINTED
            for part in PARTS
        ],
    ],
)

# Figure 1: the schedulers of the paper's motivation, which know the lengths of all responses.

SCHEDULERS = {
    "orca": ORCA,
    "srtf": SRTF,
    "fastserve": FASTSERVE,
    "prefill-first": VARIANTS["prefill-first"],
    "sarathi": VARIANTS["sarathi"],
    "multires": MULTIRES,
    "sync-coupled": SYNC_COUPLED,
    "sync-decoupled": ABLATED["synced"],
    "distserve": DISTSERVE,
}

SCHEDULER_RATES = {"Alpaca": 36.0, "ShareGPT, vLLM's": 4.0, "BookCorpus": 0.4}
"""Rates in requests per second at which some requests are queued, as the paper has it (table 2).
Alpaca's is the paper's; at its 28 and 1.2 for the others the queues would grow without end here."""

SCHEDULER_METRICS = (
    Metric.THROUGHPUT,
    Metric.COMPLETION,
    Metric.KV_USE,
    Metric.FORWARD_SIZE,
    Metric.PREEMPTIONS,
    Metric.WITHOUT_END,
)

MORE = {
    ("prefill-first", "sarathi", Metric.KV_USE): 20.0,
    ("prefill-first", "sarathi", Metric.THROUGHPUT): -41.0,
    ("prefill-first", "sarathi", Metric.FORWARD_SIZE): -27.0,
    ("prefill-first", "sarathi", Metric.COMPLETION): 29.0,
    ("multires", "sarathi", Metric.THROUGHPUT): 10.0,
    ("multires", "sarathi", Metric.FORWARD_SIZE): 5.0,
    ("multires", "sarathi", Metric.COMPLETION): -35.0,
    ("multires", "prefill-first", Metric.COMPLETION): -42.63,
    ("sync-decoupled", "sync-coupled", Metric.THROUGHPUT): 31.0,
    ("sync-decoupled", "sync-coupled", Metric.COMPLETION): -35.0,
    ("sync-decoupled", "distserve", Metric.COMPLETION): -9.0,
    ("sync-decoupled", "distserve", Metric.THROUGHPUT): 7.0,
    ("distserve", "sync-decoupled", Metric.KV_USE): -8.0,
}
"""Percent by which a system has more of a metric than another (sections 2.2 and 2.4)."""

FAILED = {"prefill-first": 0.74, "sarathi": 0.67}
"""Share of the requests whose memory was refused as they ran (section 2.2)."""


def _knowing(trace: Trace, variant: Variant) -> Experiment:
    """Return the experiment with all lengths known beforehand."""
    return replace(experiment(OPT_13B, trace, variant), foresight=1.0)


KNOWING = Sweep(
    lambda trace, system: Served(
        f"schedulers {trace.workload} {system}",
        _knowing(trace, SCHEDULERS[system]),
        SCHEDULER_RATES[trace.workload],
        trace.duration_s,
        SCHEDULER_METRICS,
    ),
    trace=TRACES,
    system=SCHEDULERS,
)


def _more(case: str, papers: Mapping[Any, float | None], **cells: Any) -> Table:
    return [
        KNOWING.over(
            GAIN,
            f"{OPT_13B.name}, {case}",
            ours,
            {other: paper},
            metric=f"% more {metric}",
            of=metric,
            **cells,
        )
        for (ours, other, metric), paper in papers.items()
    ]


SCHEDULERS_FIGURE = Figure(
    KNOWING.values(),
    [
        _more("all traces", MORE),
        *[
            Claim(
                f"{OPT_13B.name}, all traces",
                system,
                Metric.PREEMPTIONS,
                KNOWING.pooled(mean, Metric.PREEMPTIONS, system=system),
                paper,
            )
            for system, paper in FAILED.items()
        ],
        *[_more(trace.workload, dict.fromkeys(MORE), trace=trace) for trace in TRACES],
        KNOWING.table(f"{OPT_13B.name}, {{trace.workload}}", "{system}", of=SCHEDULER_METRICS),
    ],
)

# Figure 10: requests that end in time (the paper's SSR, SLO satisfaction ratio).

SATISFYING = {
    "orca": ORCA,
    "distserve": DISTSERVE,
    **{
        name: VARIANTS[name]
        for name in ("prefill-first", "sarathi", "econoserve", "econoserve, an oracle")
    },
}
HIGHER = {
    "OPT-13B": (5.0, 42.0, 83.0, 93.0, -2.0),
    "OPT-175B": (9.0, 47.0, 77.0, 106.0, -2.8),
    "Llama-33B": (7.0, 41.0, 80.0, 91.0, -4.0),
}
"""Percent by which EconoServe's share in time is higher, in the mean of the traces, than that of
DistServe, Sarathi, vLLM, ORCA and an oracle of the lengths."""

HIGHER_THAN = ("distserve", "sarathi", "prefill-first", "orca", "econoserve, an oracle")
LEAST_SHARE = 0.01
"""Share that stands for any smaller one."""

SHARES = Sweep(
    lambda model, trace, system: Attainment(
        f"satisfaction {model.name} {trace.workload} {system}",
        experiment(model, trace, SATISFYING[system], slo_rule=Completed.of(model, trace)),
        RATES[model.name][trace.workload],
        trace.duration_s,
    ),
    model=MODELS,
    trace=TRACES,
    system=SATISFYING,
)


def higher(model: Model, system: str) -> Quantity:
    ours, theirs = (
        SHARES.pooled(mean, model=model, system=each) for each in ("econoserve", system)
    )
    return lambda values: GAIN.of(ours(values), max(theirs(values), LEAST_SHARE))


SATISFACTION = Figure(
    SHARES.values(),
    [
        Claim(
            f"{model.name}, all traces",
            f"econoserve over {system}",
            "% more in time",
            higher(model, system),
            paper,
        )
        for model in MODELS
        for system, paper in zip(HIGHER_THAN, HIGHER[model.name], strict=True)
    ]
    + SHARES.table("{model.name}, {trace.workload}", "{system}", "share in time"),
)

# Figure 14: the scheduler's own time, which the simulator's requests do not wait for.

BASELINE = "prefill-first"
TIMED = {
    BASELINE: VARIANTS[BASELINE],
    "orca": ORCA,
    "sarathi": VARIANTS["sarathi"],
    "fastserve": FASTSERVE,
    "multires": MULTIRES,
    "sync-coupled": SYNC_COUPLED,
    **{name: ABLATED[name] for name in ("decoupled", "synced", "ordered", "with all")},
}
MORE_OVERHEAD = {
    "orca": -2.15,
    "sarathi": 1.84,
    "decoupled": 2.05,
    "synced": 2.16,
    "ordered": 2.36,
    "with all": 2.93,
}
"""Percent by which the scheduler's overhead is higher than vLLM's, in the mean of all models and
traces (section 4.2)."""

OF_COMPLETION = {"fastserve": 17.0, "multires": 34.0, "sync-coupled": 2.14}
"""Percent of the completion time that scheduling takes (section 2.2), in the mean of all traces.
Where nearly all time is that of steps, it is their share as well."""

OVERHEADS = Sweep(
    lambda trace, system: Overhead(
        f"overhead {trace.workload} {system}",
        experiment(OPT_13B, trace, TIMED[system]),
        RATES[OPT_13B.name][trace.workload],
        trace.duration_s,
    ),
    trace=TRACES,
    system=TIMED,
)
PERCENT_OF_STEPS = "% of the steps' time"
OVERHEAD = Figure(
    OVERHEADS.values(),
    [
        OVERHEADS.over(
            POINTS,
            f"{OPT_13B.name}, all traces",
            system,
            {BASELINE: paper},
            metric="points of the steps' time",
        )
        for system, paper in MORE_OVERHEAD.items()
    ]
    + [
        Claim(
            f"{OPT_13B.name}, all traces",
            system,
            PERCENT_OF_STEPS,
            OVERHEADS.pooled(lambda shares: 100 * mean(shares), system=system),
            paper,
        )
        for system, paper in OF_COMPLETION.items()
    ]
    + OVERHEADS.table(
        f"{OPT_13B.name}, {{trace.workload}}",
        "{system}",
        PERCENT_OF_STEPS,
        scale=100,
        is_summary=True,
    ),
)

# Figure 15: other targets, and other paddings, reserves and buffers.

SCALES = (0.5, 1.0, 1.5, 2.0, 2.5)
MORE_IN_TIME = 23.0
"""Percent by which more requests are in time under the loosest targets than under the strictest, in
the mean of the traces; taken as points here, since under the strictest none is."""

SENSITIVE = (Metric.COMPLETION, Metric.THROUGHPUT, Metric.ATTAINMENT)


@dataclass(frozen=True, slots=True)
class Factor:
    """One number of EconoServe's, in percent.

    tuned: name of the number in ``Tuning``.
    percents: values that are tried.
    best: the paper's best percent, by trace.
    """

    name: str
    tuned: str
    percents: tuple[float, ...]
    best: tuple[float, float, float]


FACTORS = (
    Factor("padding", "kv_padding", (0, 5, 10, 15, 20, 30), (10, 15, 20)),
    Factor("reserve", "kv_reserve", (0, 1, 2, 3, 4, 6), (2, 3, 4)),
    Factor("buffer", "lending_buffer", (0, 5, 10, 15, 20, 30), (15, 15, 10)),
)


def _tuned(of: str, trace: Trace, scale: float, tuning: Tuning = DEFAULT_TUNING) -> Served:
    base = experiment(OPT_13B, trace, WITH_ALL, slo_rule=Completed.of(OPT_13B, trace, scale))
    scenario = replace(base.scenario, slo=targets(OPT_13B, trace, scale), tuning=tuning)
    return Served(
        f"sensitivity {trace.workload} {of}",
        replace(base, scenario=scenario),
        RATES[OPT_13B.name][trace.workload],
        trace.duration_s,
        SENSITIVE,
    )


SCALED = Sweep(
    lambda trace, scale: _tuned(f"scale {scale:g}", trace, scale), trace=TRACES, scale=SCALES
)
STRICT, LOOSE = SCALES[0], SCALES[-1]


def _scale_claim(metric: str, how: Comparison, of: Metric, paper: float | None = None) -> Claim:
    return Claim(
        f"{OPT_13B.name}, all traces",
        f"scale {LOOSE:g} over {STRICT:g}",
        metric,
        SCALED.compare(how, LOOSE, STRICT, axis="scale", of=of),
        paper,
        is_summary=paper is None,
    )


FACTORED = {
    factor: Sweep(
        lambda trace, percent, factor=factor: _tuned(
            f"{factor.name} {percent:g} %",
            trace,
            SCALE,
            replace(DEFAULT_TUNING, **{factor.tuned: percent / 100}),
        ),
        trace=TRACES,
        percent=factor.percents,
    )
    for factor in FACTORS
}


def _times_s(factor: Factor, trace: Trace, values: Values) -> dict[float, float]:
    """Return the completion time by the percent."""
    return {
        percent: values[FACTORED[factor].key(Metric.COMPLETION, trace=trace, percent=percent)]
        for percent in factor.percents
    }


def _factor(factor: Factor, trace: Trace, paper: float) -> Table:
    def best(values: Values) -> float:
        times_s = _times_s(factor, trace, values)
        return min(times_s, key=lambda percent: times_s[percent])

    def longer(values: Values) -> float:
        times_s = _times_s(factor, trace, values).values()
        return GAIN.of(max(times_s), min(times_s))

    return [
        Claim(trace.workload, f"best {factor.name}", "%", best, paper),
        Claim(
            trace.workload,
            f"worst {factor.name} over best",
            "longer completion in %",
            longer,
            is_summary=True,
        ),
        FACTORED[factor].table(
            "{trace.workload}", f"{factor.name} {{percent:g}} %", of=SENSITIVE, trace=trace
        ),
    ]


def _factor_panel(factor: Factor, values: Values) -> Panel:
    lines = {}
    for trace in TRACES:
        times_s = _times_s(factor, trace, values)
        most = max(times_s.values())
        lines[trace.workload] = [(percent, each / most) for percent, each in times_s.items()]
    return Panel(factor.name, "%", "completion time, times the longest", lines)


SENSITIVITY = Figure(
    [*SCALED.values(), *[each for sweep in FACTORED.values() for each in sweep.values()]],
    [
        _scale_claim("points more in time", POINTS, Metric.ATTAINMENT, MORE_IN_TIME),
        _scale_claim("longer completion in %", GAIN, Metric.COMPLETION),
        _scale_claim("more requests/s in %", GAIN, Metric.THROUGHPUT),
        SCALED.table("{trace.workload}", "scale {scale:g}", of=SENSITIVE),
        *[
            _factor(factor, trace, paper)
            for factor in FACTORS
            for trace, paper in zip(TRACES, factor.best, strict=True)
        ],
    ],
    [
        Plot(
            SCALED,
            "Targets",
            "SLO-scale",
            "in time",
            "scale",
            "{trace.workload}",
            of=Metric.ATTAINMENT,
            is_share=True,
        ),
        lambda values: [_factor_panel(factor, values) for factor in FACTORS],
    ],
)

FIGURES = annotated(
    __name__,
    {
        "rate": RATE,
        "latency": LATENCY,
        "utilisation": UTILISATION,
        "devices": DEVICES_FIGURE,
        "ablation": ABLATION,
        "schedulers": SCHEDULERS_FIGURE,
        "satisfaction": SATISFACTION,
        "overhead": OVERHEAD,
        "sensitivity": SENSITIVITY,
    },
)
