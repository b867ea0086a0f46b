"""Section 4.2, ablation: what the parts save of the completion time."""

from dataclasses import replace
from statistics import mean

from macroserve.core.strategy import Batching
from macroserve.sim.papers.econoserve.cases import (
    ECONOSERVE,
    MODELS,
    NO_LENDING,
    TRACES,
    WITH_ALL,
    Trace,
    experiment,
)
from macroserve.sim.papers.figure import Figure, Row
from macroserve.sim.papers.measurements import Curve, Measurement, Metric, Values

COUPLED = replace(
    NO_LENDING, strategy=replace(ECONOSERVE, batching=Batching.CHUNKED, lending=False)
)
"""A prompt begins only when there is memory for its response, too."""

PARTS = {
    "decoupling": ("no lending", "coupled", 28.0),
    "KV pipelining": ("with all", "no lending", 29.0),
}
"""With each, without it, and the percent of the completion time that it saves (section 4.2), in the
mean of all models and traces. The paper's two other parts are not told apart here: groups save the
time of its scheduler, and its order is a policy of its own."""

ABLATED = {"with all": WITH_ALL, "no lending": NO_LENDING, "coupled": COUPLED}
RATES = {"Alpaca": 36.0, "ShareGPT, vLLM's": 2.5, "BookCorpus": 0.28}
"""Alpaca's is the paper's; at its others, of 28 and 1.2 requests/s, ever more would wait here."""

COMPLETIONS = {
    (trace.workload, name): Curve(
        f"ablation {trace.workload} {name}",
        experiment(MODELS[0], trace, variant),
        (RATES[trace.workload],),
        trace.duration_s,
        Metric.COMPLETION,
    )
    for trace in TRACES
    for name, variant in ABLATED.items()
}


def measurements() -> list[Measurement]:
    return list(COMPLETIONS.values())


def rows(values: Values) -> list[Row]:
    def completion_s(trace: Trace, name: str) -> float:
        ((_, found_s),) = COMPLETIONS[trace.workload, name].line(values)
        return found_s

    def saved(trace: Trace, used: str, unused: str) -> float:
        return 100 * (1 - completion_s(trace, used) / completion_s(trace, unused))

    metric = "completion time saved in %"
    return [
        Row(
            "ablation",
            f"{MODELS[0].name}, all traces",
            part,
            metric,
            mean(saved(trace, used, unused) for trace in TRACES),
            paper,
        )
        for part, (used, unused, paper) in PARTS.items()
    ] + [
        Row("ablation", f"{MODELS[0].name}, {trace.workload}", part, metric, saved(trace, *pair))
        for trace in TRACES
        for part, (*pair, _) in PARTS.items()
    ]


FIGURE = Figure(
    measurements,
    rows,
    "A prompt whose response waits for memory holds its own meanwhile, which is why decoupling "
    "costs time here. The paper's coupled system keeps groups of responses together, too, so "
    "that prompts begin only when a group ends; here one begins whenever there is memory for "
    "it and its response. Lending saves most where responses are long beside their prompts.",
)
