"""The small test model of ``spec.model.source: tiny``, built locally.

A Llama of 21 million random weights with a byte-level BPE tokenizer trained on Python's own help
texts: nothing is downloaded, and the same Python gives the same files on every machine. Its text
makes no sense, but its cost and serving are those of a real model. An OPT of the same size, without
rotary embedding, is for measuring the hybrid cache.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from macroserve.local.user_folders import cache_folder

VERSION = 1
"""Increased with every change of the model, so that older checkpoints are not used."""

_SEED = 0
_INIT_STD = 0.08
_PAD, _BOS, _EOS = "<pad>", "<s>", "</s>"
_VOCAB_SIZE, _HIDDEN, _INTERMEDIATE, _NUM_LAYERS, _NUM_HEADS = 2048, 512, 1408, 6, 8

_MAX_LENGTH = 4096

_SHARED_CONFIG = {
    "dtype": "float32",
    "vocab_size": _VOCAB_SIZE,
    "hidden_size": _HIDDEN,
    "num_hidden_layers": _NUM_LAYERS,
    "num_attention_heads": _NUM_HEADS,
    "max_position_embeddings": _MAX_LENGTH,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_CONFIGS = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **_SHARED_CONFIG,
        "intermediate_size": _INTERMEDIATE,
        "num_key_value_heads": _NUM_HEADS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "initializer_range": _INIT_STD,
        "tie_word_embeddings": False,
    },
    "opt": {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        **_SHARED_CONFIG,
        "ffn_dim": _INTERMEDIATE,
        "word_embed_proj_dim": _HIDDEN,
        "activation_function": "relu",
        "do_layer_norm_before": True,
        "init_std": _INIT_STD,
        "tie_word_embeddings": True,
    },
}
_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": _MAX_LENGTH,
    "pad_token": _PAD,
    "bos_token": _BOS,
    "eos_token": _EOS,
    "clean_up_tokenization_spaces": False,
    "chat_template": (
        "{% for message in messages %}{{ message.role + ': ' + message.content + '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    ),
}


def ensure_tiny_model(directory: Path | None = None, architecture: str = "llama") -> Path:
    """Return the folder of the checkpoint, building it if necessary.

    architecture: ``llama`` or ``opt``.
    directory: folder for checkpoints; by default ``macroserve/models`` in the user's cache.

    Building takes about a second and is atomic: other processes see all of it or nothing.
    """
    directory = directory or cache_folder() / "models"
    checkpoint = directory / f"tiny-{architecture}-{VERSION}"
    if checkpoint.is_dir():
        return checkpoint
    directory.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{checkpoint.name}-", dir=directory))
    try:
        _build(draft, architecture)
        draft.rename(checkpoint)
    except OSError:
        if not checkpoint.is_dir():  # otherwise another process was faster, with the same content
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return checkpoint


def _build(folder: Path, architecture: str) -> None:
    config = _CONFIGS[architecture]
    for name, content in (
        ("config.json", config),
        ("generation_config.json", {k: v for k, v in config.items() if k.endswith("token_id")}),
        ("tokenizer_config.json", _TOKENIZER_CONFIG),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    _write_tokenizer(folder / "tokenizer.json")
    _write_weights(folder / "model.safetensors", _SHAPES[architecture]())


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


def _write_weights(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    random = np.random.default_rng(_SEED)
    weights = {
        name: np.ones(shape, np.float32)
        if name.endswith("norm.weight")
        else random.standard_normal(shape, np.float32) * np.float32(_INIT_STD)
        for name, shape in shapes.items()
    }
    save_file(weights, path, metadata={"format": "pt"})


def _llama_shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of weights by name as in Hugging Face's Llama; matrices are (out, in)."""
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


def _opt_shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of weights, by name as in Hugging Face's OPT."""
    layer = {
        "self_attn.q_proj": (_HIDDEN, _HIDDEN),
        "self_attn.k_proj": (_HIDDEN, _HIDDEN),
        "self_attn.v_proj": (_HIDDEN, _HIDDEN),
        "self_attn.out_proj": (_HIDDEN, _HIDDEN),
        "self_attn_layer_norm": (_HIDDEN,),
        "fc1": (_INTERMEDIATE, _HIDDEN),
        "fc2": (_HIDDEN, _INTERMEDIATE),
        "final_layer_norm": (_HIDDEN,),
    }
    modules = {
        **{
            f"layers.{index}.{name}": shape
            for index in range(_NUM_LAYERS)
            for name, shape in layer.items()
        },
        "final_layer_norm": (_HIDDEN,),
    }
    return {
        "model.decoder.embed_tokens.weight": (_VOCAB_SIZE, _HIDDEN),
        # Positions start at two.
        "model.decoder.embed_positions.weight": (_MAX_LENGTH + 2, _HIDDEN),
        **{f"model.decoder.{name}.weight": shape for name, shape in modules.items()},
        **{f"model.decoder.{name}.bias": shape[:1] for name, shape in modules.items()},
    }


_SHAPES = {"llama": _llama_shapes, "opt": _opt_shapes}
