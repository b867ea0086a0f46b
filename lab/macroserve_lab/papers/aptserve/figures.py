"""Apt-Serve's figures and tables (section 6)."""

from statistics import mean

from macroserve.core.request import Slo
from macroserve.core.shapes import ModelShape
from macroserve.sim.hardware.devices import A100_40GB
from macroserve.sim.hardware.links import NVLINK_3
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.scenario import ClusterSpec, Scenario
from macroserve.workload.datasets import WORKLOADS
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.aptserve.cases import (
    COMPARED,
    DECAYED,
    LOWEST,
    NUM_REQUESTS,
    RANKS,
    SETS,
    VARIANTS,
    VARIATIONS,
    experiment,
)
from macroserve_lab.papers.figure import Claim, Figure, Quantity, annotated
from macroserve_lab.papers.measurements import Attainment, Curve, Goodput, Percentiles, Values
from macroserve_lab.papers.sweep import (
    LOWEST_TRIED,
    POINTS,
    TIMES,
    Plot,
    Sweep,
    attainment_plot,
    curves_table,
)
from macroserve_lab.slo_rules import as_aptserve

# Figure 8, section 6.3: rates that Apt-Serve and the baselines hold.

FLOORED = {"least": LOWEST_TRIED, "least_ours": True}
LEVELS = {"90 %": 0.9, "60 %": 0.6}
DURATION_S = {"ShareGPT": 300.0, "HumanEval": 150.0, "LongBench": 600.0}
"""Durations of the paper's number of requests at Apt-Serve's rates, seconds."""

GAINS = {
    "90 %": {"prefill-first": (2.3, 4.0), "sarathi": (1.9, 3.4), "fastgen": (1.8, 3.3)},
    "60 %": {"prefill-first": (4.9, 8.8), "sarathi": (4.4, 7.9), "fastgen": (4.3, 7.5)},
}
"""Ratios of the rate that Apt-Serve holds to the baseline's: mean and maximum of all cases."""


def _held(level: str, model: str, name: str, system: str) -> Goodput:
    chosen = experiment(model, name, system)
    key = f"{level} {model} {name} {system}"
    return Goodput(key, chosen, LEVELS[level], DURATION_S[name], LOWEST[name])


HELD = Sweep(_held, level=LEVELS, model=RANKS, name=SETS, system=COMPARED)
THROUGHPUT = Figure(
    HELD.values(),
    [
        HELD.over(
            TIMES,
            f"{level}, {of}",
            "aptserve",
            {baseline: paper},
            pool=pool,
            level=level,
            **FLOORED,
        )
        for level, gains in GAINS.items()
        for baseline, papers in gains.items()
        for of, pool, paper in zip(("all cases", "at most"), (mean, max), papers, strict=True)
    ]
    + HELD.table("{level}, {model}, {name}", "{system}", "requests/s"),
)

# Figure 11, section 6.7: attainment over the rate, with chunks as well.

CURVE_RATES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0)
CURVES = Sweep(
    lambda system: Curve(
        f"attainment {system}", experiment("OPT-13B", "ShareGPT", system), CURVE_RATES, 300.0
    ),
    system=COMPARED,
)
ATTAINMENT = Figure(
    CURVES.values(), curves_table(CURVES), [attainment_plot(CURVES, "OPT-13B, ShareGPT")]
)

# Figure 9, section 6.4: attainment by how bursty the arrivals are.

BURSTY_RATES = {"ShareGPT": 3.8, "HumanEval": 9.0, "LongBench": 1.5}
"""Requests per second at which the paper's Apt-Serve and Sarathi attain about the same."""

MOST_TIMES = 7.5
"""Largest factor of Apt-Serve's attainment over a baseline's."""

BURSTY_BASELINES = ("prefill-first", "sarathi")


def _attained(key: str, name: str, system: str, variation: float, rate: float) -> Attainment:
    chosen = experiment("OPT-13B", name, system, variation)
    return Attainment(key, chosen, rate, NUM_REQUESTS / rate)


BURSTS = Sweep(
    lambda name, variation, system: _attained(
        f"burstiness {name} {variation} {system}", name, system, variation, BURSTY_RATES[name]
    ),
    name=BURSTY_RATES,
    variation=VARIATIONS,
    system=(*BURSTY_BASELINES, "aptserve"),
)
BURSTINESS = Figure(
    BURSTS.values(),
    BURSTS.over(
        TIMES,
        "bursty arrivals, at most",
        "aptserve",
        dict.fromkeys(BURSTY_BASELINES, MOST_TIMES),
        pool=max,
        # A baseline that attains nothing counts as one that attains one request.
        least=1 / NUM_REQUESTS,
        variation=[each for each in VARIATIONS if each > 1],
    )
    + BURSTS.table(
        "{name}, {m.rate:g} requests/s, CV {variation}",
        "{system}",
        "attainment in %",
        scale=100,
        is_summary=True,
    ),
    [
        attainment_plot(
            BURSTS,
            "OPT-13B, {name}, {m.rate:g} requests/s",
            "coefficient of variation of the gaps",
            "variation",
        )
    ],
)

# Tables 4 and 5: without the hybrid cache, and without adaptive batches.

TABLE_4 = {
    ("ShareGPT", 3.0): ((99.5, 99.5), (94.7, 95.9), (75.1, 78.2)),
    ("ShareGPT", 6.0): ((65.7, 67.3), (66.7, 67.7), (57.1, 58.4)),
    ("LongBench", 1.5): ((96.6, 98.2), (70.0, 76.0), (43.4, 50.8)),
    ("LongBench", 3.0): ((70.0, 77.6), (58.8, 64.8), (35.6, 42.5)),
}
"""Attainment in percent with KV only and with the hybrid cache, for each variation of the gaps
between arrivals."""

TABLE_5 = {
    ("ShareGPT", 3.0): (26.4, 59.7, 11.9),
    ("ShareGPT", 6.0): (20.0, 18.1, 9.9),
    ("LongBench", 1.5): (11.8, 10.8, 5.4),
    ("LongBench", 3.0): (4.8, 4.6, 4.2),
}
"""Attainment in percent of Apt-Serve in first-come, first-served order, for each variation."""

ABLATED: tuple[str, ...] = ("aptserve, KV only", "aptserve", "aptserve, FCFS")
AS_THE_PAPER = (
    "aptserve, the paper's kernel",
    "aptserve, KV only, the paper's engine",
    "aptserve, the paper's engine",
)


def _papers_percent(load: tuple[str, float], variation: int, system: str) -> float | None:
    index = VARIATIONS.index(variation)
    printed = (*TABLE_4[load][index], TABLE_5[load][index])
    return dict(zip(ABLATED, printed, strict=True)).get(system)


CELLS = Sweep(
    lambda load, variation, system: _attained(
        f"ablation {load[0]} {load[1]:g} {variation} {system}", load[0], system, variation, load[1]
    ),
    load=TABLE_4,
    variation=VARIATIONS,
    system=(*ABLATED, *AS_THE_PAPER),
)
ABLATION = Figure(
    CELLS.values(),
    CELLS.table(
        "{load[0]}, {load[1]:g} requests/s, CV {variation}",
        "{system}",
        "attainment in %",
        scale=100,
        paper=_papers_percent,
    ),
)

# Figure 10, section 6.6: distributions of latencies by the order of the requests.

SPREAD_RATES = {"ShareGPT": 6.0, "HumanEval": 9.0, "LongBench": 2.0}
"""Requests per second."""

BOUNDS = {"aptserve, FCFS": 30.0, "aptserve": 90.0}
"""Attainment in percent that FCFS stays below, and that Apt-Serve exceeds, on all data sets."""

SPREAD_LATENCIES = ("TTFT", "P99 TBT")


def _spread(name: str, system: str) -> Percentiles:
    rate = SPREAD_RATES[name]
    chosen = experiment("OPT-13B", name, system)
    return Percentiles(f"latencies {name} {system}", chosen, rate, NUM_REQUESTS / rate)


SPREADS = Sweep(_spread, name=SPREAD_RATES, system=("aptserve, FCFS", "aptserve", DECAYED))
LATENCIES = Figure(
    SPREADS.values(),
    [
        [
            SPREADS.table(
                "{name}, {m.rate:g} requests/s",
                "{system}",
                "attainment in %",
                of=("attainment",),
                scale=100,
                paper=lambda name, system: BOUNDS.get(system),
                is_summary=True,
                name=name,
            ),
            *[
                SPREADS.table(
                    "{name}, {m.rate:g} requests/s",
                    "{system}",
                    f"{latency} in s, p{percent}",
                    of=(f"{latency} p{percent}",),
                    is_summary=True,
                    name=name,
                )
                for latency in SPREAD_LATENCIES
                for percent in (50, 90, 99)
            ],
        ]
        for name in SPREAD_RATES
    ],
    [
        Plot(
            SPREADS,
            "OPT-13B, {name}, {m.rate:g} requests/s",
            f"{latency} in s",
            "of the requests",
            lambda spread, values, latency=latency: spread.line(latency, values),
            is_share=True,
        )
        for latency in SPREAD_LATENCIES
    ],
)

# Figure 12, section 6.7: long contexts, of models whose heads share keys and values.

SHAPES = {"Llama3-8B": MODELS["Llama3.1-8B"], "Yi-6B": MODELS["Yi-6B"]}
LONG_RANKS = {"WikiText": 1, "Arxiv": 2, "BookCorpus, 24k": 4}
LONG_SLO = Slo(10.0, 1.0, 1.0)
CONTEXT_TOKENS = 32_768
"""Tokens of the longest context, which exceeds the longest prompt and response, and of the largest
batch: vLLM without chunks runs a prompt whole."""

LONG_RATES = {
    "WikiText": (2.0, 4.0, 6.0, 8.0, 12.0),
    "Arxiv": (0.5, 1.0, 1.5, 2.0, 3.0),
    "BookCorpus, 24k": (0.5, 0.75, 1.0, 1.5, 2.0),
}
"""Requests per second; the paper's text names 0.5 of BookCorpus alone."""

LONG_COMPARED = ("prefill-first", "aptserve")
BOUND = ("Yi-6B", "BookCorpus, 24k", 0.5, 60.0)
"""Model, data set and requests per second at which both systems attain hardly more than so many
percent."""


def long_experiment(
    shape: ModelShape, name: str, variant: str, ranks: int | None = None
) -> Experiment:
    """Return the experiment of a data set.

    ranks: devices in place of the paper's number.
    """
    cluster = ClusterSpec(
        shape,
        A100_40GB,
        NVLINK_3,
        ranks or LONG_RANKS[name],
        1,
        max_model_len=CONTEXT_TOKENS,
        max_batch_tokens=CONTEXT_TOKENS,
    )
    scenario = Scenario(cluster, VARIANTS[variant].strategy, LONG_SLO, as_aptserve)
    return Experiment(scenario, WORKLOADS[name])


LONG = Sweep(
    lambda model, name, system: Curve(
        f"ultra-long {model} {name} {system}",
        long_experiment(SHAPES[model], name, system),
        LONG_RATES[name],
        180.0,
    ),
    model=SHAPES,
    name=LONG_RATES,
    system=LONG_COMPARED,
)


def _mean_gain(model: str, name: str) -> Quantity:
    """Return Apt-Serve's gain in points, in the mean of the rates."""

    def ours(values: Values) -> float:
        theirs, apts = (
            mean(share for _, share in LONG[model, name, system].line(values))
            for system in LONG_COMPARED
        )
        return POINTS.of(apts, theirs)

    return ours


def _bound(system: str) -> Claim:
    model, name, rate, bound = BOUND
    key = LONG[model, name, system].point(rate)
    case = f"{model}, {name}, {rate:g} requests/s"
    return Claim(case, system, "attainment in %", lambda values: 100 * values[key], bound)


ULTRA_LONG = Figure(
    LONG.values(),
    [
        Claim(
            f"{model}, {name}",
            "aptserve over prefill-first",
            "points of attainment",
            _mean_gain(model, name),
            is_summary=True,
        )
        for model in SHAPES
        for name in LONG_RATES
    ]
    + [_bound(system) for system in LONG_COMPARED]
    + curves_table(LONG, "{model}, {name}, "),
    [attainment_plot(LONG, "{model}, {name}")],
)

FIGURES = annotated(
    __name__,
    {
        "throughput": THROUGHPUT,
        "attainment": ATTAINMENT,
        "burstiness": BURSTINESS,
        "ablation": ABLATION,
        "latencies": LATENCIES,
        "ultra-long": ULTRA_LONG,
    },
)
