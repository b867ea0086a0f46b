"""Shapes of the papers' models and of others, by their published configurations."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from macroserve.core.model_config import experts_of, latent_of, window_of
from macroserve.core.shapes import Experts, LatentKv, ModelShape, Window

OPT_VOCABULARY, LLAMA_VOCABULARY = 50272, 32000

OPT: dict[str, Any] = {"gated_mlp": False, "rotary": False}

MODELS: dict[str, ModelShape] = {
    "OPT-13B": ModelShape(40, 5120, 40, 40, 128, 20480, OPT_VOCABULARY, **OPT),
    "OPT-30B": ModelShape(48, 7168, 56, 56, 128, 28672, OPT_VOCABULARY, **OPT),
    "OPT-66B": ModelShape(64, 9216, 72, 72, 128, 36864, OPT_VOCABULARY, **OPT),
    "OPT-175B": ModelShape(96, 12288, 96, 96, 128, 49152, OPT_VOCABULARY, **OPT),
    # Llama-30B and Llama-33B are two names of one model.
    "Llama-30B": ModelShape(60, 6656, 52, 52, 128, 17920, LLAMA_VOCABULARY),
    "Llama-33B": ModelShape(60, 6656, 52, 52, 128, 17920, LLAMA_VOCABULARY),
    "CodeLlama-34B": ModelShape(48, 8192, 64, 8, 128, 22016, LLAMA_VOCABULARY),
    "Qwen2-72B": ModelShape(80, 8192, 64, 8, 128, 29568, 152064),
    "Mistral-7B": ModelShape(32, 4096, 32, 8, 128, 14336, LLAMA_VOCABULARY),
    "Llama3.1-8B": ModelShape(32, 4096, 32, 8, 128, 14336, 128256),
    "Yi-6B": ModelShape(32, 4096, 32, 4, 128, 11008, 64000),
    # The first Qwen: its feed-forward size counts both halves of the gate.
    "Qwen-14B": ModelShape(40, 5120, 40, 40, 128, 13696, 152064),
    "Mixtral-8x7B": ModelShape(
        32, 4096, 32, 8, 128, 14336, LLAMA_VOCABULARY, experts=Experts(8, 2, 14336)
    ),
    "Qwen2.5-7B": ModelShape(28, 3584, 28, 4, 128, 18944, 152064),
    "Qwen3-32B": ModelShape(64, 5120, 64, 8, 128, 25600, 151936),
    "Qwen3-30B-A3B": ModelShape(48, 2048, 32, 4, 128, 6144, 151936, experts=Experts(128, 8, 768)),
    "DeepSeek-V3": ModelShape(
        *(61, 7168, 128, 128, 192, 18432, 129280),
        experts=Experts(256, 8, 2048, shared_size=2048, num_dense_layers=3),
        latent=LatentKv(512, position_dim=64, content_dim=128, value_dim=128, query_rank=1536),
    ),
    # All weights count as 16-bit, although its experts are published with four bits.
    "gpt-oss-20b": ModelShape(
        24, 2880, 64, 8, 64, 2880, 201088, experts=Experts(32, 4, 2880), window=Window(128, 12)
    ),
    "Gemma3-27B": ModelShape(62, 5376, 32, 16, 128, 21504, 262208, window=Window(1024, 52)),
}
"""Shapes on one device."""

ARCHITECTURES: dict[str, str] = {
    **dict.fromkeys(("OPT-13B", "OPT-30B", "OPT-66B", "OPT-175B"), "OPTForCausalLM"),
    **dict.fromkeys(
        ("Llama-30B", "Llama-33B", "CodeLlama-34B", "Llama3.1-8B", "Yi-6B"), "LlamaForCausalLM"
    ),
    **dict.fromkeys(("Qwen2-72B", "Qwen2.5-7B"), "Qwen2ForCausalLM"),
    "Qwen-14B": "QWenLMHeadModel",
    "Qwen3-32B": "Qwen3ForCausalLM",
    "Qwen3-30B-A3B": "Qwen3MoeForCausalLM",
    "Mistral-7B": "MistralForCausalLM",
    "Mixtral-8x7B": "MixtralForCausalLM",
    "DeepSeek-V3": "DeepseekV3ForCausalLM",
    "gpt-oss-20b": "GptOssForCausalLM",
    "Gemma3-27B": "Gemma3ForConditionalGeneration",
}
"""Architectures as named in the published configurations."""

UNGATED = ("opt", "gpt2", "gpt_neox", "gptj", "phi", "starcoder2")
"""Model types whose feed-forward blocks have two matrices."""

LEARNED_POSITIONS = ("opt", "gpt2", "starcoder")
"""Model types that add a token's position to its embedding."""

RECURRENT = ("mamba_d_state", "ssm_state_size", "state_size", "linear_num_key_heads")
"""Keys of models with recurrent layers, which have a state instead of keys and values."""


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """Return the shape described by a checkpoint's ``config.json``.

    Raises ValueError for a model with recurrent layers and for missing or invalid sizes.
    """
    _check_fields(config)
    config = config.get("text_config") or config
    _check_fields(config)
    if any(config.get(key) for key in RECURRENT):
        raise ValueError("the simulator does not support models with recurrent layers")

    def size(*names: str) -> int:
        for name in names:
            if value := config.get(name):
                return value
        raise ValueError(f"the model's configuration lacks {' or '.join(names)}")

    hidden, heads = size("hidden_size", "n_embd"), size("num_attention_heads", "n_head")
    head_dim = size("head_dim") if config.get("head_dim") else hidden // heads
    latent = latent_of(config)
    if latent:
        head_dim = latent.content_dim + latent.position_dim
    return ModelShape(
        num_layers=size("num_hidden_layers", "n_layer"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=size("num_key_value_heads", "num_attention_heads", "n_head"),
        head_dim=head_dim,
        intermediate_size=size("intermediate_size", "ffn_dim", "n_inner"),
        vocab_size=size("vocab_size"),
        gated_mlp=config.get("model_type") not in UNGATED,
        rotary=config.get("model_type") not in LEARNED_POSITIONS,
        experts=experts_of(config),
        latent=latent,
        window=window_of(config),
    )


_Size = Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)] | None


class _ConfigFields(msgspec.Struct):
    """Fields of ``config.json`` that determine the shape, for all model families."""

    hidden_size: _Size = None
    n_embd: _Size = None
    num_attention_heads: _Size = None
    n_head: _Size = None
    num_key_value_heads: _Size = None
    head_dim: _Size = None
    num_hidden_layers: _Size = None
    n_layer: _Size = None
    intermediate_size: _Size = None
    ffn_dim: _Size = None
    n_inner: _Size = None
    vocab_size: _Size = None
    n_routed_experts: _Count = None
    num_local_experts: _Count = None
    num_experts: _Count = None
    num_experts_per_tok: _Count = None
    experts_per_token: _Count = None
    top_k_experts: _Count = None
    moe_intermediate_size: _Count = None
    n_shared_experts: _Count = None
    shared_expert_intermediate_size: _Count = None
    first_k_dense_replace: _Count = None
    mlp_only_layers: list[int] | None = None
    kv_lora_rank: _Count = None
    q_lora_rank: _Count = None
    qk_rope_head_dim: _Count = None
    qk_nope_head_dim: _Count = None
    v_head_dim: _Count = None
    sliding_window: _Count = None
    use_sliding_window: bool | None = None
    sliding_window_pattern: _Count | str = None
    layer_types: list[str] | None = None
    model_type: str | None = None
    architectures: list[str] | None = None


def _check_fields(config: Mapping[str, Any]) -> None:
    """Raise ValueError if a field has a value of the wrong type."""
    try:
        msgspec.convert(config, _ConfigFields)
    except msgspec.ValidationError as error:
        raise ValueError(f"the model's configuration cannot be read: {error}") from None
