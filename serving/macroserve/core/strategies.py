"""The named strategies: the baselines, each paper as a whole, and two combinations."""

from macroserve.core.routing.policies import (
    ascendra_route,
    ecoserve_route,
    least_load_route,
    macro_route,
    unified_route,
)
from macroserve.core.scheduler.batching.aptserve import aptserve_batch, chunked_aptserve_batch
from macroserve.core.scheduler.batching.ascendra import ascendra_batch
from macroserve.core.scheduler.batching.baselines import (
    chunked_batch,
    mixed_batch,
    prefill_first_batch,
)
from macroserve.core.scheduler.batching.econoserve import econoserve_batch
from macroserve.core.scheduler.batching.ecoserve import ecoserve_batch
from macroserve.core.scheduler.batching.macro import macro_batch
from macroserve.core.scheduler.batching.unified import unified_batch
from macroserve.core.strategy import HybridCache, Ordering, Strategy

STRATEGIES: dict[str, Strategy] = {
    s.name: s
    for s in (
        Strategy("vllm", mixed_batch, least_load_route, Ordering.FCFS),
        Strategy("prefill-first", prefill_first_batch, least_load_route, Ordering.FCFS),
        Strategy(
            "sarathi",
            chunked_batch,
            least_load_route,
            Ordering.FCFS,
            tunables=frozenset({"chunk_tokens"}),
        ),
        Strategy(
            "ecoserve",
            ecoserve_batch,
            ecoserve_route,
            Ordering.FCFS,
            takes_turns=True,
            mean_slack=True,
        ),
        Strategy(
            "aptserve",
            aptserve_batch,
            least_load_route,
            Ordering.FCFS,
            hybrid_cache=HybridCache.VALUE,
            tunables=frozenset({"late_value"}),
            chooses_decodes=True,
        ),
        Strategy(
            "aptserve-s",
            chunked_aptserve_batch,
            least_load_route,
            Ordering.FCFS,
            hybrid_cache=HybridCache.VALUE,
            tunables=frozenset({"chunk_tokens", "late_value"}),
            chooses_decodes=True,
        ),
        Strategy(
            "econoserve",
            econoserve_batch,
            least_load_route,
            Ordering.EDF,
            exact_kv=True,
            queues_responses=True,
            group_by_length=True,
            kv_lending=True,
            tunables=frozenset({"chunk_tokens", "kv_padding", "kv_reserve", "lending_buffer"}),
        ),
        Strategy(
            "ascendra",
            ascendra_batch,
            ascendra_route,
            # The paper calls it EDF, with a deadline that is earlier for longer prompts.
            Ordering.SLACK,
            takes_turns=True,
            uses_pools=True,
            offload=True,
            # 2 LP + 1 HP: the best of the configurations tried (section 8.4).
            high_priority_ratio=1 / 3,
            tunables=frozenset({"offload_threshold_s", "lp_batch_size", "hp_free_share"}),
        ),
        Strategy(
            "macro",
            macro_batch,
            macro_route,
            Ordering.EDF,
            takes_turns=True,
            uses_pools=True,
            offload=True,
            exact_kv=True,
            queues_responses=True,
            hybrid_cache=HybridCache.VALUE,
            mean_slack=True,
            high_priority_ratio=1 / 3,
            group_by_length=True,
            kv_lending=True,
            tunables=frozenset(
                {"late_value", "kv_padding", "kv_reserve", "lending_buffer", "offload_threshold_s"}
            ),
        ),
        Strategy(
            "unified",
            unified_batch,
            unified_route,
            Ordering.EDF,
            uses_pools=True,
            offload=True,
            triage=True,
            rests=True,
            hybrid_cache=HybridCache.CHEAP,
            tunables=frozenset({"offload_threshold_s"}),
        ),
    )
}


def strategy(name: str) -> Strategy:
    """Return the strategy of that name. Raises ValueError that names the known ones."""
    try:
        return STRATEGIES[name]
    except KeyError:
        raise ValueError(f"unknown strategy {name!r}, known are: {', '.join(STRATEGIES)}") from None
