"""The shapes of the model and the device for the latency model, from vLLM's configuration."""

from vllm.config import VllmConfig
from vllm.platforms import current_platform

from macroserve.core.accelerators import assumed_peaks
from macroserve.core.model_config import experts_of, latent_of, window_of
from macroserve.core.shapes import DeviceShape, ModelShape

ONE_CORE = DeviceShape(flops_per_s=1e11, bytes_per_s=1e10)
"""Order of magnitude of a CPU core."""


def model_shape(config: VllmConfig) -> ModelShape:
    model, parallel = config.model_config, config.parallel_config
    hf = model.hf_text_config
    parts = hf.to_dict()
    latent = latent_of(parts)
    # OPT's feed-forward layers have no gate, and another name for their size.
    gated = hasattr(hf, "intermediate_size")
    return ModelShape(
        num_layers=model.get_total_num_hidden_layers(),
        hidden_size=model.get_hidden_size(),
        num_heads=hf.num_attention_heads,
        num_kv_heads=model.get_total_num_kv_heads(),
        # With a latent, vLLM returns its size instead of a head's.
        head_dim=latent.content_dim + latent.position_dim if latent else model.get_head_size(),
        intermediate_size=hf.intermediate_size if gated else hf.ffn_dim,
        vocab_size=model.get_vocab_size(),
        dtype_bytes=model.dtype.itemsize,
        tensor_parallel=parallel.tensor_parallel_size,
        gated_mlp=gated,
        rotary=hasattr(hf, "rope_parameters") or hasattr(hf, "rope_theta"),
        experts=experts_of(parts),
        latent=latent,
        window=window_of(parts),
    )


def assumed_device() -> DeviceShape:
    """Return the device that the latency model assumes before the first batch. The fit replaces it
    within seconds."""
    if current_platform.is_cpu():
        return ONE_CORE
    name = current_platform.get_device_name()
    return assumed_peaks(name, current_platform.get_device_total_memory())
