"""Small models of the supported kinds, with random weights."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SIZES = {
    "vocab_size": 2048,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.08,
}

WINDOW = 64
"""Tokens of the sliding windows, fewer than most prompts have."""

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}


def build(folder: Path, kind: str) -> Path:
    """Build the model of a kind, with the same weights each time."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if kind == "vlm":
        return _build_vision_model(folder, SIZES)
    import torch
    import transformers

    torch.manual_seed(7)
    config = _config(kind)
    model = getattr(transformers, config.architectures[0])(config)
    if kind == "gemma3":
        # Otherwise each token would predict itself as the next one.
        torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.01)
    model.save_pretrained(folder)
    return folder


def _config(kind: str) -> Any:
    import transformers

    # Each class accepts undeclared arguments.
    hf: Any = transformers
    match kind:
        case "gemma3":
            # Five layers with a window, then one with full attention: six groups of blocks.
            config = hf.Gemma3TextConfig(
                **SIZES | {"num_hidden_layers": 6},
                intermediate_size=128,
                num_key_value_heads=1,
                head_dim=32,
                query_pre_attn_scalar=32,
                sliding_window=WINDOW,
            )
            architecture = "Gemma3ForCausalLM"
        case "gptoss":
            config = hf.GptOssConfig(
                **SIZES,
                intermediate_size=64,
                num_key_value_heads=1,
                head_dim=32,
                sliding_window=WINDOW,
                num_local_experts=4,
                num_experts_per_tok=2,
            )
            architecture = "GptOssForCausalLM"
        case "mla":
            # vLLM's kernel for CPUs supports no other size of the latent vector.
            config = hf.DeepseekV3Config(
                **SIZES | EXPERTS,
                intermediate_size=128,
                num_key_value_heads=2,
                n_shared_experts=1,
                n_routed_experts=4,
                n_group=1,
                topk_group=1,
                topk_method="noaux_tc",
                first_k_dense_replace=1,
                kv_lora_rank=512,
                q_lora_rank=32,
                qk_rope_head_dim=64,
                qk_nope_head_dim=16,
                v_head_dim=16,
            )
            architecture = "DeepseekV3ForCausalLM"
        case "moe":
            config = hf.Qwen3MoeConfig(
                **SIZES | EXPERTS,
                intermediate_size=128,
                head_dim=32,
                num_key_value_heads=1,
                num_experts=4,
            )
            architecture = "Qwen3MoeForCausalLM"
        case "recurrent":
            # Three layers with a state, then one with full attention: four groups of blocks.
            config = hf.GraniteMoeHybridConfig(
                **SIZES | {"num_hidden_layers": 4},
                layer_types=["mamba", "mamba", "mamba", "attention"],
                intermediate_size=64,
                shared_intermediate_size=128,
                num_key_value_heads=2,
                mamba_n_heads=4,
                mamba_d_head=32,
                mamba_d_state=16,
                mamba_n_groups=1,
                num_local_experts=0,
                num_experts_per_tok=0,
                position_embedding_type="rope",
            )
            architecture = "GraniteMoeHybridForCausalLM"
        case _:
            raise ValueError(f"no kind of model is called {kind!r}")
    config.architectures = [architecture]
    return config


# Idefics3, whose images fill a part of their tokens in a prompt, the rest being separators. Its
# tokenizer knows the words ``w0``, ``w1`` and so on.

TILE = 56
"""Width and height of a tile in pixels; a larger image becomes four tiles and a small copy."""
PATCH = 7
TILE_TOKENS = (TILE // PATCH) ** 2 // 4
"""Tokens of each tile."""

_SPECIAL = (
    "<pad>",
    "<s>",
    "</s>",
    "<unk>",
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
)
TEMPLATE_OF_USER = "user: {} "
"""The template renders one message like this."""
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}:"
    "{% if message.content is string %} {{ message.content }}{% else %}"
    "{% for part in message.content %} "
    "{% if part.type == 'text' %}{{ part.text }}{% else %}<image>{% endif %}"
    "{% endfor %}{% endif %} {% endfor %}"
)


def _build_vision_model(folder: Path, sizes: Mapping[str, Any]) -> Path:
    """Build the model with its tokenizer and its image processor; return the folder.

    sizes: of its text model, as transformers names them.
    """
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers.models.idefics3.image_processing_pil_idefics3 import (
        Idefics3ImageProcessorPil,
    )

    names = [*_SPECIAL, *(f"w{i}" for i in range(sizes["vocab_size"] - len(_SPECIAL)))]
    words = models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>")
    text = Tokenizer(words)
    text.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=text,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=list(_SPECIAL[4:]),
        chat_template=_CHAT_TEMPLATE,
    )
    image_processor = Idefics3ImageProcessorPil(
        size={"longest_edge": 2 * TILE}, max_image_size={"longest_edge": TILE}
    )
    processor = transformers.Idefics3Processor(
        image_processor, tokenizer, image_seq_len=TILE_TOKENS, chat_template=_CHAT_TEMPLATE
    )
    processor.save_pretrained(folder)
    torch.manual_seed(7)
    config = transformers.Idefics3Config(
        text_config=transformers.LlamaConfig(
            **sizes, intermediate_size=256, num_key_value_heads=2, pad_token_id=0
        ),
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": TILE,
            "patch_size": PATCH,
        },
        image_token_id=names.index("<image>"),
        scale_factor=2,
        pad_token_id=0,
    )
    model = transformers.Idefics3ForConditionalGeneration(config)
    for name, weights in model.named_parameters():
        if "vision_model" in name or "connector" in name:
            torch.nn.init.normal_(weights, std=0.3)
    model.save_pretrained(folder)
    return folder
