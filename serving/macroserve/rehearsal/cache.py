"""The KV cache of a modelled device: layers' shapes, and memory that the weights leave."""

from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from macroserve.engine.vllm.shape import model_shape
from macroserve.rehearsal import rehearsed
from macroserve.sim.hardware.devices import DEVICES

RESERVED_BYTES = 2 << 30
"""Memory of a device for activations, graphs and its context."""


def cache_specs(config: VllmConfig) -> dict[str, AttentionSpec]:
    """Return the cache of each layer on one rank of the first stage."""
    shape, parallel = model_shape(config), config.parallel_config
    block_size, dtype = config.cache_config.block_size, config.model_config.dtype
    heads = max(1, shape.num_kv_heads // parallel.tensor_parallel_size)
    window = shape.window

    def spec(layer: int) -> AttentionSpec:
        if shape.latent:
            return MLAAttentionSpec(
                block_size=block_size, num_kv_heads=1, head_size=shape.kv_size, dtype=dtype
            )
        sizes = {
            "block_size": block_size,
            "num_kv_heads": heads,
            "head_size": shape.head_dim,
            "dtype": dtype,
        }
        # The layers with windows come in turns with the others.
        if window and layer * window.num_layers % shape.num_layers < window.num_layers:
            return SlidingWindowSpec(**sizes, sliding_window=window.num_tokens)
        return FullAttentionSpec(**sizes)

    num_layers = -(-shape.num_layers // parallel.pipeline_parallel_size)
    return {f"model.layers.{layer}.self_attn.attn": spec(layer) for layer in range(num_layers)}


def cache_bytes(config: VllmConfig) -> int:
    """Return the memory of one rank for its cache. Raises ValueError if the weights leave none."""
    if given := config.cache_config.kv_cache_memory_bytes:
        return given
    device, parallel = DEVICES[rehearsed().device], config.parallel_config
    usable = config.cache_config.gpu_memory_utilization * device.memory_bytes - RESERVED_BYTES
    weights = model_shape(config).weight_bytes / parallel.world_size
    if usable <= weights:
        raise ValueError(
            f"weights of {weights / 1e9:.0f} GB leave no memory for a cache on a {device.name}"
        )
    return int(usable - weights)
