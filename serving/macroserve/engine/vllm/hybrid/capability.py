"""A model either supports hidden states or has a reason not to, and they save some memory or
none."""

from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.models.llama import LlamaAttention
from vllm.model_executor.models.opt import OPTAttention
from vllm.model_executor.models.qwen2 import Qwen2Attention
from vllm.v1.kv_cache_interface import is_quantized_kv_cache

from macroserve.engine.hybrid_cache import SHARED, HybridCacheFit

ATTENTION: dict[str, type[nn.Module]] = {
    "LlamaForCausalLM": LlamaAttention,
    "OPTForCausalLM": OPTAttention,
    "Qwen2ForCausalLM": Qwen2Attention,
}
"""Attention blocks by architecture that compute keys and values from their input by one projection,
rotate keys by their position, and apply no other operation to them."""

ROTARY = ("LlamaForCausalLM", "Qwen2ForCausalLM")
"""Architectures that rotate keys."""


BACKENDS = ("CPU_ATTN", "FLASH_ATTN", "TRITON_ATTN")
"""vLLM's attention backends that keep no state of a batch between planning and attention: parts of
a batch are planned one after another. With FlashInfer, the next plan would replace the last."""


def find(config: VllmConfig) -> HybridCacheFit | str:
    """Return the model's fit or the reason against it, for ``hybrid_cache.decide_hybrid_cache``."""
    direct = config.model_config.architecture not in ROTARY
    return why_not(config) or HybridCacheFit(share(config), direct)


def share(config: VllmConfig) -> float:
    """Return the memory of a token's hidden state relative to that of its keys and values, on one
    rank.

    Each rank keeps its part of both (Apt-Serve, section 3.1, has it for one device).
    """
    model, parallel = config.model_config, config.parallel_config
    kv_size = 2 * model.get_num_kv_heads(parallel) * model.get_head_size()
    return model.get_hidden_size() / parallel.tensor_parallel_size / kv_size


def why_not(config: VllmConfig) -> str | None:
    """Return the obstacle, to follow "but" or "off:" in a sentence; None without one."""
    model, text = config.model_config, config.model_config.hf_text_config
    if model.use_mla:
        return "latent attention (MLA) keeps less than hidden states already"
    if model.architecture not in ATTENTION:
        return f"it does not know the attention of {model.architecture}"
    layer_types: list[str] = getattr(text, "layer_types", None) or []
    if model.get_sliding_window() or "sliding_attention" in layer_types:
        return "it does not know attention with a sliding window"
    if getattr(text, "dual_chunk_attention_config", None):
        return "it does not know dual chunk attention"
    backend = config.attention_config.backend
    if backend and backend.name not in BACKENDS:
        return f"it does not know attention backend {backend.name}"
    if model.quantization or is_quantized_kv_cache(config.cache_config.cache_dtype):
        return "it does not know quantized weights or caches"
    if config.lora_config:
        return "LoRA adapters would change the keys and values that are made again"
    if config.speculative_config:
        return "drafted tokens would be kept before they are accepted (speculative decoding)"
    if config.kv_transfer_config:
        return "a KV connector would move pages whatever they hold"
    if config.parallel_config.pipeline_parallel_size > 1:
        return "a pipeline begins a batch before the one ahead has ended"
    if config.parallel_config.decode_context_parallel_size > 1:
        return "decode context parallelism divides a request's pages among ranks"
    if config.cache_config.enable_prefix_caching:
        return SHARED
    if model.get_hidden_size() % config.parallel_config.tensor_parallel_size:
        return "its ranks cannot share a hidden state evenly"
    return None
