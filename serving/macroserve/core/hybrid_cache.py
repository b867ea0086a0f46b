"""Decision on whether requests may cache hidden states instead of keys and values (Apt-Serve)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from macroserve.core.cache_decision import CacheDecision
from macroserve.core.strategy import HybridCache, Strategy

ROTARY = ("LlamaForCausalLM", "Qwen2ForCausalLM")
"""Architectures with rotary embedding, by their names in ``config.json``."""
ARCHITECTURES = (*ROTARY, "OPTForCausalLM")
"""Architectures whose keys and values are one projection of the attention block's input, with at
most a rotation of the keys after it."""

BACKENDS = ("CPU_ATTN", "FLASH_ATTN", "TRITON_ATTN")
"""vLLM's attention backends without state between planning and attention, as parts of a batch are
planned one after another. With FlashInfer, each plan would replace the previous one."""

SHARED = "prefix caching would share pages regardless of their contents"
RECOMPUTED = (
    "keys and values would have to be recomputed in every step (rotary embedding), which "
    "costs more time than strategy {} spends to save memory"
)
NOT_IN_PAPER = (
    "in its paper, strategy {} uses keys and values only; spec.engine.hybridCache On lets it use "
    "hidden states"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridCacheFacts:
    """Properties of a model and its engine that decide whether hidden states can be cached."""

    architecture: str
    """Name in the checkpoint's ``config.json``."""
    hidden_size: int
    has_latent: bool = False
    """The model caches latent vectors (MLA)."""
    has_window: bool = False
    """Some layers have a sliding window."""
    has_dual_chunks: bool = False
    attention_backend: str | None = None
    """Name of vLLM's attention backend; None if vLLM chooses."""
    is_quantized: bool = False
    """The weights or the cache are quantized."""
    has_adapters: bool = False
    drafts_tokens: bool = False
    moves_blocks: bool = False
    """A KV connector copies blocks, for example to host memory."""
    shares_prefixes: bool = False
    num_ranks: int = 1
    """Tensor-parallel devices."""
    num_stages: int = 1
    num_context_ranks: int = 1
    """Ranks of decode context parallelism."""

    @property
    def obstacle(self) -> str | None:
        """Return why hidden states cannot be cached, to follow "but" or "off:"; else None."""
        if self.has_latent:
            return "latent attention (MLA) takes less memory than hidden states"
        if self.architecture not in ARCHITECTURES:
            return f"it does not support the attention of {self.architecture}"
        if self.has_window:
            return "it does not support sliding windows"
        if self.has_dual_chunks:
            return "it does not support dual chunk attention"
        if self.attention_backend and self.attention_backend not in BACKENDS:
            return f"it does not support the attention backend {self.attention_backend}"
        if self.is_quantized:
            return "it does not support quantized weights or caches"
        if self.has_adapters:
            return "LoRA adapters would change the recomputed keys and values"
        if self.drafts_tokens:
            return "drafted tokens would be cached before they are accepted (speculative decoding)"
        if self.moves_blocks:
            return "a KV connector would move pages regardless of their contents"
        if self.num_stages > 1:
            return "a pipeline starts a batch before the previous one has ended"
        if self.num_context_ranks > 1:
            return "decode context parallelism distributes a request's pages over ranks"
        if self.shares_prefixes:
            return SHARED
        if self.hidden_size % self.num_ranks:
            return "its ranks cannot share a hidden state evenly"
        return None


class HybridCacheFit(NamedTuple):
    """Costs of the hybrid cache for a model."""

    share: float
    """Memory of a token's hidden state relative to its keys and values."""
    direct: bool
    """Whether attention can read hidden states directly, without rotary embedding; otherwise keys
    and values are recomputed from them in every step."""


def fit_of(facts: HybridCacheFacts, share: Callable[[], float]) -> HybridCacheFit | str:
    """Return the fit, or the reason why hidden states cannot be cached.

    share: returns ``HybridCacheFit.share``; called only if there is no obstacle.
    """
    return facts.obstacle or HybridCacheFit(share(), facts.architecture not in ROTARY)


def decide_hybrid_cache(
    strategy: Strategy, setting: str, find: Callable[[], HybridCacheFit | str]
) -> CacheDecision:
    """Decide whether the instance caches hidden states.

    setting: Auto (if they are smaller and the strategy can gain by them), On (with any strategy) or
        Off. Raises ValueError if it is On and hidden states cannot be cached.
    find: returns the result of ``fit_of``; called only if needed, as it inspects the model.
    """
    if setting == "Off":
        return CacheDecision(False, "spec.engine.hybridCache is Off")
    if setting == "Auto" and not strategy.keeps_hidden:
        return CacheDecision(False, NOT_IN_PAPER.format(strategy.name))
    found = find()
    if isinstance(found, str):
        if setting == "On":
            raise ValueError(f"spec.engine.hybridCache is On, but {found}")
        return CacheDecision(False, found)
    if setting == "Auto" and strategy.hybrid_cache is HybridCache.CHEAP and not found.direct:
        return CacheDecision(False, RECOMPUTED.format(strategy.name))
    reason = f"hidden states take {found.share:.2f} of the memory of keys and values"
    return CacheDecision(found.share < 1 or setting == "On", reason)


def keeping_hidden(strategy: Strategy, on: bool) -> Strategy:
    """Return the strategy with hidden states turned on or off; HybridCache.CHEAP if it has no rule
    for them."""
    if on == strategy.keeps_hidden:
        return strategy
    return replace(strategy, hybrid_cache=HybridCache.CHEAP if on else HybridCache.NEVER)
