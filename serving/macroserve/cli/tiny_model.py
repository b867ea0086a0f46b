"""The small test model that ``spec.model.source: tiny`` stands for, built on the spot.

A Llama of 21 million random weights with a byte-level BPE tokenizer trained on Python's own help
texts: nothing is downloaded, and the same Python gives the same files on every machine. What it
says makes no sense; what it costs and how it is served are those of a real model.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path

VERSION = 1
"""To be raised with every change of what is built, so that an older build is not taken for it."""

_SEED = 0
_INIT_STD = 0.08
_PAD, _BOS, _EOS = "<pad>", "<s>", "</s>"
_VOCAB_SIZE, _HIDDEN, _INTERMEDIATE, _NUM_LAYERS, _NUM_HEADS = 2048, 512, 1408, 6, 8

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "vocab_size": _VOCAB_SIZE,
    "hidden_size": _HIDDEN,
    "intermediate_size": _INTERMEDIATE,
    "num_hidden_layers": _NUM_LAYERS,
    "num_attention_heads": _NUM_HEADS,
    "num_key_value_heads": _NUM_HEADS,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "initializer_range": _INIT_STD,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 4096,
    "pad_token": _PAD,
    "bos_token": _BOS,
    "eos_token": _EOS,
    "clean_up_tokenization_spaces": False,
    "chat_template": (
        "{% for message in messages %}{{ message.role + ': ' + message.content + '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    ),
}


def ensure_tiny_model(directory: Path | None = None) -> Path:
    """The folder of the checkpoint, which is built first where it does not exist.

    directory: where to keep it; by default ``macroserve/models`` in the user's cache.
    Building takes about a second and is atomic: another process sees all of it or nothing.
    """
    directory = directory or _cache() / "macroserve" / "models"
    checkpoint = directory / f"tiny-llama-{VERSION}"
    if checkpoint.is_dir():
        return checkpoint
    directory.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{checkpoint.name}-", dir=directory))
    try:
        _build(draft)
        draft.rename(checkpoint)
    except OSError:
        if not checkpoint.is_dir():  # else another process was faster, with the same content
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return checkpoint


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _build(folder: Path) -> None:
    for name, content in (
        ("config.json", _CONFIG),
        ("generation_config.json", {k: v for k, v in _CONFIG.items() if k.endswith("token_id")}),
        ("tokenizer_config.json", _TOKENIZER_CONFIG),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    _write_tokenizer(folder / "tokenizer.json")
    _write_weights(folder / "model.safetensors")


def _write_tokenizer(path: Path) -> None:
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB_SIZE,
        special_tokens=[_PAD, _BOS, _EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(topics.values(), trainer)
    tokenizer.save(str(path))


def _write_weights(path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    random = np.random.default_rng(_SEED)
    weights = {
        name: np.ones(shape, np.float32)
        if len(shape) == 1
        else random.standard_normal(shape, np.float32) * np.float32(_INIT_STD)
        for name, shape in _shapes().items()
    }
    save_file(weights, path, metadata={"format": "pt"})


def _shapes() -> dict[str, tuple[int, ...]]:
    """Weights by name as in Hugging Face's Llama; matrices are (out, in), norms have one axis."""
    square, up, down, norm = (
        (_HIDDEN, _HIDDEN),
        (_INTERMEDIATE, _HIDDEN),
        (_HIDDEN, _INTERMEDIATE),
        (_HIDDEN,),
    )
    layer = {
        "self_attn.q_proj": square,
        "self_attn.k_proj": square,
        "self_attn.v_proj": square,
        "self_attn.o_proj": square,
        "mlp.gate_proj": up,
        "mlp.up_proj": up,
        "mlp.down_proj": down,
        "input_layernorm": norm,
        "post_attention_layernorm": norm,
    }
    return {
        "model.embed_tokens.weight": (_VOCAB_SIZE, _HIDDEN),
        **{
            f"model.layers.{index}.{name}.weight": shape
            for index in range(_NUM_LAYERS)
            for name, shape in layer.items()
        },
        "model.norm.weight": norm,
        "lm_head.weight": (_VOCAB_SIZE, _HIDDEN),
    }
