"""A decision tells whether prompts share the cache blocks of a common beginning."""

from macroserve.core.cache_decision import CacheDecision


def decide_prefix_caching(setting: str, is_hybrid: bool, is_on: bool) -> CacheDecision:
    """Tell what became of ``spec.engine.prefixCaching``.

    setting: Auto (wherever the engine can, and not beside hidden states), On or Off.
    is_hybrid: whether requests keep hidden states.
    is_on: whether the engine that runs shares blocks.
    """
    if is_on:
        return CacheDecision(True, "prompts share the blocks of a common prefix")
    if setting == "Off":
        return CacheDecision(False, "spec.engine.prefixCaching is Off")
    if is_hybrid:
        return CacheDecision(
            False, "a block may hold hidden states (status.hybridCache), which are not shared"
        )
    return CacheDecision(False, "the engine does not support it with this model")
