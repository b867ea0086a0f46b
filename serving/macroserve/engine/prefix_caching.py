"""The decision on prefix caching, with its reason."""

from macroserve.core.cache_decision import CacheDecision


def decide_prefix_caching(setting: str, is_hybrid: bool, is_on: bool) -> CacheDecision:
    """Explain whether the started engine caches prefixes (``is_on``).

    setting: ``spec.engine.prefixCaching``, where Auto means if the engine supports it and no
        request keeps hidden states.
    is_hybrid: whether requests may keep hidden states.
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
