"""Parts of a model's shape from ``config.json``, whose keys differ between model families."""

from collections.abc import Mapping, Sequence
from typing import Any

from macroserve.core.shapes import Experts, LatentKv, Window

_EVERY_NTH_IS_FULL = {"gemma2": 2, "gemma3_text": 6}
"""Distance between layers without a window, by model type, where the checkpoint omits it."""


def num_layers_of(config: Mapping[str, Any]) -> int:
    """Return the number of layers; 0 if the configuration lacks it."""
    return _first(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers")


def experts_of(config: Mapping[str, Any]) -> Experts | None:
    num = _first(config, "n_routed_experts", "num_local_experts", "num_experts")
    per_token = _first(config, "num_experts_per_tok", "experts_per_token", "top_k_experts")
    if not (num and per_token):
        return None
    size = _first(config, "moe_intermediate_size", "intermediate_size")
    num_dense = _first(config, "first_k_dense_replace") or len(config.get("mlp_only_layers") or ())
    num_shared = _first(config, "n_shared_experts")
    return Experts(
        num,
        per_token,
        size,
        shared_size=_first(config, "shared_expert_intermediate_size") or num_shared * size,
        # Small checkpoints of a family keep its number of dense layers but have fewer layers.
        num_dense_layers=min(num_dense, num_layers_of(config) or num_dense),
    )


def latent_of(config: Mapping[str, Any]) -> LatentKv | None:
    """Return the latent vector, if the model caches one. Raises ValueError if a size is missing."""
    if not (rank := _first(config, "kv_lora_rank")):
        return None
    names = ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    if missing := [name for name in names if not _first(config, name)]:
        raise ValueError(f"the model's configuration lacks {' and '.join(missing)}")
    return LatentKv(rank, *[config[name] for name in names], query_rank=config.get("q_lora_rank"))


def window_of(config: Mapping[str, Any]) -> Window | None:
    num_tokens, num_layers = _first(config, "sliding_window"), num_layers_of(config)
    if not num_tokens or config.get("use_sliding_window") is False:
        return None
    kinds: Sequence[str] = config.get("layer_types") or ()
    nth = config.get("sliding_window_pattern") or _EVERY_NTH_IS_FULL.get(
        config.get("model_type", "")
    )
    if kinds:
        # The list may include additional layers that draft tokens.
        num_layers = sum([kind == "sliding_attention" for kind in kinds[: num_layers or None]])
    elif isinstance(nth, str):
        # EXAONE 4 writes LLLG: three local layers, a global one, and so on.
        num_layers = (nth * num_layers)[:num_layers].count("L")
    elif nth:
        num_layers -= num_layers // nth
    return Window(num_tokens, num_layers) if num_layers else None


def _first(config: Mapping[str, Any], *names: str) -> int:
    """Return the first value present; 0 if there is none."""
    return next((config[name] for name in names if config.get(name)), 0)
