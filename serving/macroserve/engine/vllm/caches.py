"""The kinds of cache of an engine exclude each other, so they are decided together."""

from dataclasses import replace

from vllm.engine.arg_utils import AsyncEngineArgs

from macroserve.core.strategies import strategy
from macroserve.engine.cache_decision import CacheDecision
from macroserve.engine.hybrid_cache import decide_hybrid_cache
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.hybrid.capability import find
from macroserve.engine.vllm.options import with_hybrid_cache


def with_caches(
    args: AsyncEngineArgs, settings: EngineSettings
) -> tuple[AsyncEngineArgs, CacheDecision]:
    """Return the arguments with the caches that the settings ask for, and the decision on the
    hybrid cache.

    Prefix caching that is asked for excludes hidden states, which exclude prefix caching by Auto;
    without them, Auto leaves it to vLLM. Raises ValueError if both are asked for.
    """
    hybrid = decide_hybrid_cache(
        strategy(settings.strategy),
        settings.hybrid_cache,
        lambda: find(args.create_engine_config()),
    )
    if hybrid.on:
        return with_hybrid_cache(args), hybrid
    if settings.prefix_caching == "Auto":
        args = replace(args, enable_prefix_caching=None)
    return args, hybrid
