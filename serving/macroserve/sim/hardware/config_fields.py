"""Fields of ``config.json`` that determine a model's shape."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

_Size = Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)] | None


class _Fields(msgspec.Struct):
    """Fields of all model families, of which each model has some."""

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


def check_fields(config: Mapping[str, Any]) -> None:
    """Raise ValueError if a field has a value of the wrong type."""
    try:
        msgspec.convert(config, _Fields)
    except msgspec.ValidationError as error:
        raise ValueError(f"the model's configuration cannot be read: {error}") from None
