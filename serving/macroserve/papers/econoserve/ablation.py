"""Section 4.2, ablation: the share of the completion time that each part saves."""

from dataclasses import replace
from statistics import mean

from macroserve.core.scheduler.batching.baselines import chunked_batch
from macroserve.core.strategy import Ordering
from macroserve.papers.econoserve.cases import (
    MODELS,
    NO_LENDING,
    TRACES,
    WITH_ALL,
    Trace,
    experiment,
)
from macroserve.papers.figure import Figure, Row
from macroserve.papers.measurements import Curve, Measurement, Metric, Values

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
    "decoupling": ("decoupled", "coupled", 28.0),
    "synced batching": ("synced", "decoupled", 19.0),
    "ordering": ("ordered", "synced", 7.0),
    "KV pipelining": ("with all", "ordered", 29.0),
}
"""Variant with each part, variant without it, and the percent of the completion time that the part
saves (section 4.2), in the mean of all models and traces."""

RATES = {"Alpaca": 36.0, "ShareGPT, vLLM's": 2.5, "BookCorpus": 0.28}
"""Rates in requests per second. Alpaca's is the paper's; at the paper's 28 and 1.2 requests/s for
the other traces the queues would grow without end here."""

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
    "costs time here, with a cache of 24 or 36 GB, too. The paper's coupled system keeps groups of "
    "responses together, so "
    "that prompts begin only when a group ends; here one begins whenever there is memory for "
    "it and its response. Groups save the time of the paper's scheduler; here a host takes as long "
    "for a step, whoever is in it (`macroserve bench scheduler` times what they save). The order "
    "saves 16 % on ShareGPT and costs 3 % on BookCorpus; with the shortest first of those equally "
    "urgent, and not the longest, it would save 18 % and cost 5 %. Lending saves most where "
    "responses are long beside their prompts: 27 % on ShareGPT, 17 % on BookCorpus, 1 % on Alpaca.",
)
