"""Measure ``unified`` where nearly all requests have to be within the targets, and where nearly all
tokens have to be in time and not only in their mean."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from macroserve.sim.results import as_aptserve
from macroserve_lab.papers.figure import Figure, Row
from macroserve_lab.papers.measurements import Values
from macroserve_lab.papers.unified import benchmarks
from macroserve_lab.papers.unified.benchmarks import BENCHMARKS, Benchmark, with_scenario

MODELS = ("CodeLlama-34B", "OPT-13B", "Mistral-7B", "Llama3.1-8B", "Qwen-14B")
"""Models of the chosen cases: one case of each paper but Ascendra, whose cases are all small."""

CHOSEN = [
    benchmark
    for benchmark in BENCHMARKS
    if benchmark.limit_s is None and any(model in benchmark.name for model in MODELS)
]
NEARLY_ALL = [replace(benchmark, name=f"{benchmark.name}, P99", level=0.99) for benchmark in CHOSEN]


def _every_token(benchmark: Benchmark) -> Benchmark:
    slo = benchmark.experiment.scenario.slo
    strict = replace(slo, tbt_s=slo.tpot_s)
    return replace(
        benchmark,
        name=f"{benchmark.name}, P99 of the gaps",
        experiment=with_scenario(benchmark.experiment, slo=strict, slo_rule=as_aptserve),
    )


# Apt-Serve's own are such.
EVERY_TOKEN = [_every_token(each) for each in CHOSEN if each.paper != "aptserve"]


def _rows(figure: str, chosen: Sequence[Benchmark], values: Values) -> list[Row]:
    gains = benchmarks.gains(figure, chosen, values)
    return [*gains, *benchmarks.rates(figure, chosen, values)]


def _figure(name: str, chosen: Sequence[Benchmark]) -> Figure:
    return Figure(partial(benchmarks.measurements, chosen), partial(_rows, name, chosen))


NEARLY_ALL_FIGURE = _figure("p99", NEARLY_ALL)
EVERY_TOKEN_FIGURE = _figure("tbt", EVERY_TOKEN)
