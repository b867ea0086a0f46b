"""The gain of each part of ``unified``, and of parts that it leaves out."""

from dataclasses import replace
from statistics import mean

from macroserve.core.routing.policies.ascendra import ascendra_route
from macroserve.core.routing.policies.ecoserve import ecoserve_route
from macroserve.core.scheduler.batching.baselines import chunked_batch
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import HybridCache, Ordering, Strategy
from macroserve.papers.figure import Figure, Row
from macroserve.papers.measurements import Measurement, Values
from macroserve.papers.unified.benchmarks import BENCHMARKS, UNIFIED, Benchmark, with_scenario
from macroserve.sim.experiment import Experiment

WHOLE = STRATEGIES[UNIFIED]
WITHOUT: dict[str, Strategy] = {
    "the hybrid cache": replace(WHOLE, hybrid_cache=HybridCache.NEVER),
    "steps from saved time (Sarathi's chunks instead)": replace(WHOLE, batch=chunked_batch),
    "triage and response ratios (by deadline alone)": replace(WHOLE, triage=False),
    "triage, response ratios and deadlines (first come, first served)": replace(
        WHOLE, triage=False, ordering=Ordering.FCFS
    ),
    "routing to the fewest requests (instances in turn)": replace(WHOLE, route=ascendra_route),
    "routing to the fewest requests (EcoServe's rolling order)": replace(
        WHOLE, route=ecoserve_route, uses_pools=False, offload=False
    ),
}
WITH: dict[str, tuple[Strategy, float]] = {
    "an HP instance in three": (WHOLE, 1 / 3),
    "exact allocation": (replace(WHOLE, exact_kv=True), 0.0),
}
_MODELS = ("L20, Llama-30B", "OPT-13B", "Mistral-7B", "Llama3.1-8B", "Qwen-14B")
CASES = [benchmark for benchmark in BENCHMARKS if any(model in benchmark.name for model in _MODELS)]


def measurements() -> list[Measurement]:
    return [
        benchmark.search(variant, experiment)
        for benchmark in CASES
        for variant, experiment in variants_of(benchmark).items()
    ]


def variants_of(benchmark: Benchmark) -> dict[str, Experiment]:
    """Return the experiments with all parts, without each one and with each other one."""
    base = benchmark.experiment
    found = {"all parts": base}
    for part, strategy in WITHOUT.items():
        found[f"without {part}"] = with_scenario(base, strategy=strategy)
    for part, (strategy, ratio) in WITH.items():
        found[f"with {part}"] = with_scenario(base, strategy=strategy, high_priority_ratio=ratio)
    return found


def rows(values: Values) -> list[Row]:
    """Return the change of the goodput, in percent, without a part and with one more."""

    def held(benchmark: Benchmark, variant: str) -> float:
        return max(values[benchmark.key(variant)], benchmark.lowest)

    def change(benchmark: Benchmark, variant: str) -> float:
        return 100 * (held(benchmark, variant) / held(benchmark, "all parts") - 1)

    variants = [f"without {part}" for part in WITHOUT] + [f"with {part}" for part in WITH]
    means = [
        Row(
            "ablation",
            "mean of all cases",
            variant,
            "rate in %",
            mean(change(benchmark, variant) for benchmark in CASES),
            is_summary=True,
        )
        for variant in variants
    ]
    return means + [
        Row(
            "ablation",
            f"{benchmark.paper}, {benchmark.name}",
            variant,
            "rate in %",
            change(benchmark, variant),
        )
        for benchmark in CASES
        for variant in variants
    ]


FIGURE = Figure(measurements, rows)
