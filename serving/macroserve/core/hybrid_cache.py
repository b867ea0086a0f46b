"""A decision tells whether requests may keep hidden states in place of keys and values."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from macroserve.core.cache_decision import CacheDecision
from macroserve.core.strategy import HybridCache, Strategy

ROTARY = ("LlamaForCausalLM", "Qwen2ForCausalLM")
"""Architectures that rotate keys, by the names in a checkpoint's ``config.json``."""
ARCHITECTURES = (*ROTARY, "OPTForCausalLM")
"""Architectures that compute keys and values from the input of the attention block by one
projection, rotate keys by their position, and apply no other operation to them."""

BACKENDS = ("CPU_ATTN", "FLASH_ATTN", "TRITON_ATTN")
"""vLLM's attention backends that keep no state of a batch between planning and attention: parts of
a batch are planned one after another. With FlashInfer, the next plan would replace the last."""

SHARED = "prefix caching would share pages regardless of their contents"
MADE_AGAIN = (
    "keys and values would have to be recomputed in every step (rotary embedding), which "
    "takes more time than strategy {} gives for memory"
)


ALONE = (
    "in its paper, strategy {} uses keys and values only; spec.engine.hybridCache On lets it use "
    "hidden states"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridCacheFacts:
    """Facts of a model and of its engine decide whether requests can keep hidden states."""

    architecture: str
    """Name in the checkpoint's ``config.json``."""
    hidden_size: int
    has_latent: bool = False
    """The model caches latent vectors (MLA)."""
    has_window: bool = False
    """Some layers attend to the nearest tokens only."""
    has_dual_chunks: bool = False
    attention_backend: str | None = None
    """Name of vLLM's attention backend; None if vLLM chooses."""
    is_quantized: bool = False
    """The weights or the cache are quantized."""
    has_adapters: bool = False
    drafts_tokens: bool = False
    """The engine decodes speculatively."""
    moves_blocks: bool = False
    """A KV connector copies blocks, such as into the memory of the host."""
    shares_prefixes: bool = False
    """Prompts share blocks."""
    num_ranks: int = 1
    """Devices that share every layer."""
    num_stages: int = 1
    num_context_ranks: int = 1
    """Ranks of decode context parallelism."""

    @property
    def obstacle(self) -> str | None:
        """Return why hidden states cannot be kept, to follow "but" or "off:" in a sentence; None
        if they can."""
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
    """A model's fit for the hybrid cache determines the decision."""

    share: float
    """Memory of a token's hidden state relative to that of its keys and values."""
    direct: bool
    """True if attention reads hidden states directly, as no rotary embedding rotates keys.
    Otherwise keys and values are recomputed from them in every step."""


def fit_of(facts: HybridCacheFacts, share: Callable[[], float]) -> HybridCacheFit | str:
    """Return the fit, or the reason why hidden states cannot be kept.

    share: returns ``HybridCacheFit.share``. Called only if nothing is in the way.
    """
    return facts.obstacle or HybridCacheFit(share(), facts.architecture not in ROTARY)


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
    if on == strategy.keeps_hidden:
        return strategy
    return replace(strategy, hybrid_cache=HybridCache.CHEAP if on else HybridCache.NEVER)
