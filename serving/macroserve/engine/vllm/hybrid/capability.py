"""Support of hidden states by a model and its engine, from vLLM's configuration."""

from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.models.llama import LlamaAttention
from vllm.model_executor.models.opt import OPTAttention
from vllm.model_executor.models.qwen2 import Qwen2Attention
from vllm.v1.kv_cache_interface import is_quantized_kv_cache

from macroserve.core.hybrid_cache import HybridCacheFacts, HybridCacheFit, fit_of

ATTENTION: dict[str, type[nn.Module]] = {
    "LlamaForCausalLM": LlamaAttention,
    "OPTForCausalLM": OPTAttention,
    "Qwen2ForCausalLM": Qwen2Attention,
}
"""Attention blocks of ``core.hybrid_cache.ARCHITECTURES``."""


def find(config: VllmConfig) -> HybridCacheFit | str:
    """Return the model's fit or the reason against it, for ``hybrid_cache.decide_hybrid_cache``."""
    return fit_of(_facts(config), lambda: share(config))


def share(config: VllmConfig) -> float:
    """Return the size of a token's hidden state relative to its keys and values, on one rank, which
    has its part of both (Apt-Serve, section 3.1, for one device)."""
    model, parallel = config.model_config, config.parallel_config
    kv_size = 2 * model.get_num_kv_heads(parallel) * model.get_head_size()
    return model.get_hidden_size() / parallel.tensor_parallel_size / kv_size


def _facts(config: VllmConfig) -> HybridCacheFacts:
    model, text = config.model_config, config.model_config.hf_text_config
    layer_types: list[str] = getattr(text, "layer_types", None) or []
    backend = config.attention_config.backend
    return HybridCacheFacts(
        architecture=model.architecture,
        hidden_size=model.get_hidden_size(),
        has_latent=model.use_mla,
        has_window=bool(model.get_sliding_window() or "sliding_attention" in layer_types),
        has_dual_chunks=bool(getattr(text, "dual_chunk_attention_config", None)),
        attention_backend=backend.name if backend else None,
        is_quantized=bool(
            model.quantization or is_quantized_kv_cache(config.cache_config.cache_dtype)
        ),
        has_adapters=config.lora_config is not None,
        drafts_tokens=config.speculative_config is not None,
        moves_blocks=config.kv_transfer_config is not None,
        shares_prefixes=bool(config.cache_config.enable_prefix_caching),
        num_ranks=config.parallel_config.tensor_parallel_size,
        num_stages=config.parallel_config.pipeline_parallel_size,
        num_context_ranks=config.parallel_config.decode_context_parallel_size,
    )
