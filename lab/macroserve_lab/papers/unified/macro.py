"""The strategy ``macro`` without each of the papers' mechanisms."""

from dataclasses import replace

from macroserve.core.routing.policies import ascendra_route, ecoserve_route
from macroserve.core.scheduler.batching.econoserve import econoserve_batch
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import HybridCache, Ordering
from macroserve_lab.papers.unified.ablation import Ablation
from macroserve_lab.papers.unified.parts import CASES

MACRO = STRATEGIES["macro"]
RATIO = MACRO.high_priority_ratio
ONE_POOL = replace(MACRO, route=ecoserve_route, uses_pools=False, offload=False)
WITHOUT = {
    "the HP pool": (ONE_POOL, 0.0),
    "rolling activation (LP instances in turn)": (replace(MACRO, route=ascendra_route), RATIO),
    "phases and value (EconoServe's batches)": (replace(MACRO, batch=econoserve_batch), RATIO),
    "the hybrid cache": (replace(MACRO, hybrid_cache=HybridCache.NEVER), RATIO),
    "lending": (replace(MACRO, kv_lending=False), RATIO),
    "groups and order of responses (by arrival)": (
        replace(MACRO, group_by_length=False, ordering=Ordering.FCFS),
        RATIO,
    ),
    "memory for whole responses": (
        replace(MACRO, exact_kv=False, queues_responses=False, kv_lending=False),
        RATIO,
    ),
    "all of that (unified)": (STRATEGIES["unified"], 0.0),
}
ABLATION = Ablation(
    "macro",
    CASES,
    {
        f"macro without {part}": {"strategy": strategy, "high_priority_ratio": ratio}
        for part, (strategy, ratio) in WITHOUT.items()
    },
    base={"strategy": MACRO, "high_priority_ratio": RATIO},
)
FIGURE = ABLATION.figure(
    "The mechanisms were made to work alone, and get in each other's way. In runs of 60 s, eight "
    "L20 instances with Llama-30B hold 14.3 requests/s of ShareGPT: the decodes of HP instances "
    "wait for prefills, and short responses miss TPOT where the mean saved TPOT pays for a phase, "
    "as EcoServe counts the wait for its end as TTFT and a client does not. No response waits for "
    "memory on an LP instance there. By a client's count ecoserve alone holds 6.6, by its own 23. "
    "Memory for whole responses halves an OPT-13B's LongBench, 1.1 and not 2.2, and that is "
    "EconoServe's rule: alone it holds 1.2, since a response that waits for more than 1 s misses "
    "Apt-Serve's target between two tokens. unified holds 34.7 and 2.3.",
)
