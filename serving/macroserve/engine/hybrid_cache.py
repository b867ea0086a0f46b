"""Whether an instance's requests may keep hidden states in place of keys and values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from macroserve.core.strategy import HybridCache, Strategy

MADE_AGAIN = (
    "keys and values would be made of hidden states again at every step (rotary embedding), which "
    "takes more time than strategy {} gives for memory"
)


@dataclass(frozen=True, slots=True)
class HybridCacheDecision:
    """As said in logs and status: ``on: `` or ``off: ``, and why."""

    on: bool
    reason: str

    def __str__(self) -> str:
        return f"{'on' if self.on else 'off'}: {self.reason}"


class HybridCacheFit(NamedTuple):
    """Of a model. share: memory of a token's hidden state over that of its keys and values. direct:
    attention reads hidden states as they are, as no rotary embedding turns keys; else keys and
    values are made of them again at every step."""

    share: float
    direct: bool


def decide_hybrid_cache(
    strategy: Strategy, wish: str, find: Callable[[], HybridCacheFit | str]
) -> HybridCacheDecision:
    """wish: Auto (where they are smaller, and the strategy can gain by them), On (wherever they can
    be kept), or Off.

    find: what there is to know of the model, or why hidden states cannot be kept. Asked only where
        that matters, as the answer takes a look at the model.
    Raises ValueError where it is wished On and cannot be.
    """
    if wish == "Off":
        return HybridCacheDecision(False, "spec.engine.hybridCache is Off")
    if strategy.keeps_hidden:
        found = find()
    else:
        found = f"strategy {strategy.name} keeps keys and values alone"
    if isinstance(found, str):
        if wish == "On":
            raise ValueError(f"spec.engine.hybridCache is On, but {found}")
        return HybridCacheDecision(False, found)
    if wish == "Auto" and strategy.hybrid_cache is HybridCache.CHEAP and not found.direct:
        return HybridCacheDecision(False, MADE_AGAIN.format(strategy.name))
    reason = f"hidden states take {found.share:.2f} of the memory of keys and values"
    return HybridCacheDecision(found.share < 1 or wish == "On", reason)
