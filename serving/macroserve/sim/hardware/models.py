"""Shapes of the models that the papers serve, and of others by their published configurations."""

from collections.abc import Mapping

from macroserve.core.shapes import ModelShape

OPT_VOCABULARY, LLAMA_VOCABULARY = 50272, 32000

OPT = {"gated_mlp": False, "rotary": False}

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
    # The first Qwen: its feed-forward size counts both halves of the gate.
    "Qwen-14B": ModelShape(40, 5120, 40, 40, 128, 13696, 152064),
}
"""Shapes on one device; ``dataclasses.replace`` sets how many devices share a model."""

UNGATED = ("opt", "gpt2", "gpt_neox", "gptj", "phi", "starcoder2")
"""Model types whose feed-forward blocks have two matrices."""

LEARNED_POSITIONS = ("opt", "gpt2", "starcoder")
"""Model types that add a token's position to its embedding."""

NOT_DENSE = {
    "kv_lora_rank": "it attends to a latent cache (MLA)",
    "num_experts": "it is a mixture of experts",
    "num_local_experts": "it is a mixture of experts",
    "n_routed_experts": "it is a mixture of experts",
}


def shape_of(config: Mapping[str, object]) -> ModelShape:
    """Return the shape that a checkpoint's ``config.json`` describes.

    Raises ValueError for a model that is no dense decoder, or whose sizes are missing.
    """
    for key, reason in NOT_DENSE.items():
        if config.get(key):
            raise ValueError(f"the simulator knows dense models, and {reason}")

    def size(*names: str) -> int:
        for name in names:
            if isinstance(value := config.get(name), int):
                return value
        raise ValueError(f"the model's configuration does not tell {' or '.join(names)}")

    hidden, heads = size("hidden_size", "n_embd"), size("num_attention_heads", "n_head")
    return ModelShape(
        num_layers=size("num_hidden_layers", "n_layer"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=size("num_key_value_heads", "num_attention_heads", "n_head"),
        head_dim=size("head_dim") if config.get("head_dim") else hidden // heads,
        intermediate_size=size("intermediate_size", "ffn_dim", "n_inner"),
        vocab_size=size("vocab_size"),
        gated_mlp=config.get("model_type") not in UNGATED,
        rotary=config.get("model_type") not in LEARNED_POSITIONS,
    )
