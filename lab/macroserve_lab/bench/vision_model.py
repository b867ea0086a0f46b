"""A checkpoint of random weights that sees images: Idefics3, whose images fill a part of their
tokens in a prompt, the rest being separators.

Its tokenizer knows the words ``w0``, ``w1`` and so on.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}:"
    "{% if message.content is string %} {{ message.content }}{% else %}"
    "{% for part in message.content %} "
    "{% if part.type == 'text' %}{{ part.text }}{% else %}<image>{% endif %}"
    "{% endfor %}{% endif %} {% endfor %}"
)


def build_vision_model(folder: Path, sizes: Mapping[str, Any]) -> Path:
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
        chat_template=_TEMPLATE,
    )
    image_processor = Idefics3ImageProcessorPil(
        size={"longest_edge": 2 * TILE}, max_image_size={"longest_edge": TILE}
    )
    processor = transformers.Idefics3Processor(
        image_processor, tokenizer, image_seq_len=TILE_TOKENS, chat_template=_TEMPLATE
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
