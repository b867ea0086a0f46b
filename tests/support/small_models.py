"""Checkpoints with random weights, of attention that the hybrid cache supports and of others, long
enough to cross pages of any size."""

import itertools
import json
import os
from pathlib import Path

SIZES = {
    "vocab_size": 2048,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "initializer_range": 0.08,
    "init_std": 0.08,
}


def build(folder: Path, name: str) -> Path:
    """Build a small model: ``llama``, ``opt``, ``qwen``, or ``llama-gqa``, whose heads share keys
    and values."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    torch.manual_seed(7)
    match name:
        case "opt":
            config = transformers.OPTConfig(**SIZES, ffn_dim=512, word_embed_proj_dim=128)
            model = transformers.OPTForCausalLM(config)
            biases = [v for k, v in model.named_parameters() if k.endswith("_proj.bias")]
        case "qwen":
            config = transformers.Qwen2Config(
                **SIZES, intermediate_size=256, num_key_value_heads=4, use_sliding_window=False
            )
            model = transformers.Qwen2ForCausalLM(config)
            biases = [v for k, v in model.named_parameters() if k.endswith("_proj.bias")]
        case "llama" | "llama-gqa":
            heads = 4 if name == "llama" else 1
            config = transformers.LlamaConfig(
                **SIZES, intermediate_size=256, num_key_value_heads=heads
            )
            model, biases = transformers.LlamaForCausalLM(config), []
    for bias in biases:
        torch.nn.init.normal_(bias, std=0.5)
    model.save_pretrained(folder)
    return folder


def build_adapter(folder: Path, model: Path, seed: int, rank: int = 8) -> Path:
    """Build a LoRA adapter of a small Llama, large enough to change most tokens."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    sizes = json.loads((model / "config.json").read_text())
    hidden_size = sizes["hidden_size"]
    inputs = {
        "self_attn.q_proj": hidden_size,
        "self_attn.v_proj": hidden_size,
        "mlp.down_proj": sizes["intermediate_size"],
    }
    weights = {}
    for layer, module in itertools.product(range(sizes["num_hidden_layers"]), inputs):
        name = f"base_model.model.model.layers.{layer}.{module}"
        weights[f"{name}.lora_A.weight"] = torch.randn(rank, inputs[module]) * 0.2
        weights[f"{name}.lora_B.weight"] = torch.randn(hidden_size, rank) * 0.2
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": [module.split(".")[1] for module in inputs],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(weights, folder / "adapter_model.safetensors")
    return folder
