"""A decision tells whether requests may keep hidden states in place of keys and values."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from macroserve.core.strategy import HybridCache, Strategy
from macroserve.engine.cache_decision import CacheDecision

SHARED = "prefix caching would share a page whatever it holds"
MADE_AGAIN = (
    "keys and values would be made of hidden states again at every step (rotary embedding), which "
    "takes more time than strategy {} gives for memory"
)


ALONE = (
    "strategy {} keeps keys and values alone in its paper; spec.engine.hybridCache On lets it keep "
    "hidden states"
)


class HybridCacheFit(NamedTuple):
    """A model's fit for the hybrid cache determines the decision."""

    share: float
    """Memory of a token's hidden state relative to that of its keys and values."""
    direct: bool
    """Whether attention reads hidden states directly, as no rotary embedding rotates keys.
    Otherwise keys and values are recomputed from them in every step."""


def decide_hybrid_cache(
    strategy: Strategy, setting: str, find: Callable[[], HybridCacheFit | str]
) -> CacheDecision:
    """Decide whether the instance keeps hidden states.

    setting: Auto (if they are smaller and the strategy can gain by them), On (if possible, with any
        strategy), or Off.
    find: returns the model's fit, or the reason why hidden states cannot be kept. Called only if
        needed, as it inspects the model.

    Raises ValueError if ``setting`` is On and hidden states cannot be kept.
    """
    if setting == "Off":
        return CacheDecision(False, "spec.engine.hybridCache is Off")
    if setting == "Auto" and not strategy.keeps_hidden:
        return CacheDecision(False, ALONE.format(strategy.name))
    found = find()
    if isinstance(found, str):
        if setting == "On":
            raise ValueError(f"spec.engine.hybridCache is On, but {found}")
        return CacheDecision(False, found)
    if setting == "Auto" and strategy.hybrid_cache is HybridCache.CHEAP and not found.direct:
        return CacheDecision(False, MADE_AGAIN.format(strategy.name))
    reason = f"hidden states take {found.share:.2f} of the memory of keys and values"
    return CacheDecision(found.share < 1 or setting == "On", reason)


def keeping_hidden(strategy: Strategy, on: bool) -> Strategy:
    """Return the strategy as an engine runs it that keeps hidden states, or keeps none (``on``).

    A strategy without a rule of its own keeps them while memory is short and they cost little
    (``HybridCache.CHEAP``).
    """
    if not on or strategy.keeps_hidden:
        return strategy
    return replace(strategy, hybrid_cache=HybridCache.CHEAP)
