"""Figure 10: requests that end in time (the paper's SSR, SLO satisfaction ratio)."""

from statistics import mean

from macroserve_lab.papers.econoserve.cases import (
    DISTSERVE,
    MODELS,
    ORCA,
    RATES,
    TRACES,
    VARIANTS,
    Model,
    Trace,
    experiment,
)
from macroserve_lab.papers.econoserve.completed import Completed
from macroserve_lab.papers.figure import Figure, Row
from macroserve_lab.papers.measurements import Attainment, Measurement, Values

SYSTEMS = {
    "orca": ORCA,
    "distserve": DISTSERVE,
    **{
        name: VARIANTS[name]
        for name in ("prefill-first", "sarathi", "econoserve", "econoserve, an oracle")
    },
}

HIGHER = {
    "OPT-13B": {
        "distserve": 5.0,
        "sarathi": 42.0,
        "prefill-first": 83.0,
        "orca": 93.0,
        "econoserve, an oracle": -2.0,
    },
    "OPT-175B": {
        "distserve": 9.0,
        "sarathi": 47.0,
        "prefill-first": 77.0,
        "orca": 106.0,
        "econoserve, an oracle": -2.8,
    },
    "Llama-33B": {
        "distserve": 7.0,
        "sarathi": 41.0,
        "prefill-first": 80.0,
        "orca": 91.0,
        "econoserve, an oracle": -4.0,
    },
}
"""Percent by which EconoServe's share in time is higher, in the mean of the traces."""

LEAST_SHARE = 0.01
"""Share that stands for any smaller one."""

SHARES = {
    (model, trace, name): Attainment(
        f"satisfaction {model.name} {trace.workload} {name}",
        experiment(model, trace, variant, slo_rule=Completed.of(model, trace)),
        RATES[model.name][trace.workload],
        trace.duration_s,
    )
    for model in MODELS
    for trace in TRACES
    for name, variant in SYSTEMS.items()
}


def measurements() -> list[Measurement]:
    return list(SHARES.values())


def rows(values: Values) -> list[Row]:
    def share(model: Model, trace: Trace, name: str) -> float:
        return values[SHARES[model, trace, name].key]

    def higher(model: Model, name: str) -> float:
        ours, theirs = (
            mean(share(model, trace, each) for trace in TRACES) for each in ("econoserve", name)
        )
        return 100 * (ours / max(theirs, LEAST_SHARE) - 1)

    return [
        Row(
            "satisfaction",
            f"{model.name}, all traces",
            f"econoserve over {name}",
            "% more in time",
            higher(model, name),
            paper,
        )
        for model in MODELS
        for name, paper in HIGHER[model.name].items()
    ] + [
        Row(
            "satisfaction",
            f"{model.name}, {trace.workload}",
            name,
            "share in time",
            values[each.key],
        )
        for (model, trace, name), each in SHARES.items()
    ]


TRACES_DECIDE = (
    "The trace decides more than the system. On Alpaca, prefill-first runs a step for nearly every "
    "prompt while all decodes wait, and has 1 to 18 % in time; whoever batches both together has "
    "all. On ShareGPT, prefill-first and sarathi have all in time at the rates of OPT-13B and "
    "Llama-33B, at which EconoServe's responses wait for memory that is reserved: it has 78 and "
    "94 %. OPT-175B is beyond its capacity there: neither of the two has any in time, "
    "EconoServe 17 %. On BookCorpus EconoServe is behind both of OPT-13B (28 and 35 %) and of "
    "Llama-33B (17 and 43 %), and slightly ahead of OPT-175B (22 and 19 to 20 %). DistServe has "
    "twice the devices. ORCA runs 3, 2 and 13 requests at once, and has at most 6 % in time."
)

FIGURE = Figure(measurements, rows, TRACES_DECIDE)
