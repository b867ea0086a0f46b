"""The gain of each part of ``unified``, and of parts that it leaves out."""

from dataclasses import replace

from macroserve.core.routing.policies import ascendra_route, ecoserve_route
from macroserve.core.scheduler.batching.baselines import chunked_batch
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import HybridCache, Ordering, Strategy
from macroserve_lab.papers.unified.ablation import Ablation
from macroserve_lab.papers.unified.benchmarks import BENCHMARKS, UNIFIED

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
CASES = tuple(each for each in BENCHMARKS if any(model in each.name for model in _MODELS))
ABLATION = Ablation(
    "all parts",
    CASES,
    {
        **{f"without {part}": {"strategy": strategy} for part, strategy in WITHOUT.items()},
        **{
            f"with {part}": {"strategy": strategy, "high_priority_ratio": ratio}
            for part, (strategy, ratio) in WITH.items()
        },
    },
)
FIGURE = ABLATION.figure()
