"""Shapes from checkpoints' configurations."""

import pytest

from macroserve.core.shapes import ModelShape
from macroserve.sim.hardware.models import MODELS, shape_of

MISTRAL = {
    "model_type": "mistral",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 32000,
}
OPT = {
    "model_type": "opt",
    "num_hidden_layers": 40,
    "hidden_size": 5120,
    "num_attention_heads": 40,
    "ffn_dim": 20480,
    "vocab_size": 50272,
}
HEADS_OF_THEIR_OWN = MISTRAL | {"head_dim": 256}
MIXTRAL = MISTRAL | {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None}


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (MISTRAL, MODELS["Mistral-7B"]),
        (OPT, MODELS["OPT-13B"]),
        (MIXTRAL, MODELS["Mixtral-8x7B"]),
        ({"model_type": "gemma3", "text_config": MIXTRAL}, MODELS["Mixtral-8x7B"]),
        (MISTRAL | {"sliding_window_pattern": "LLLG"}, MODELS["Mistral-7B"]),
        (HEADS_OF_THEIR_OWN, ModelShape(32, 4096, 32, 8, 256, 14336, 32000)),
    ],
)
def test_model_shape_follows_its_published_configuration(config, shape):
    assert shape_of(config) == shape


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (MISTRAL | {"mamba_d_state": 16}, "does not support models with recurrent layers"),
        (MISTRAL | {"kv_lora_rank": 512}, "lacks qk_rope_head_dim and qk_nope_head_dim"),
        ({"hidden_size": 4096}, "lacks num_attention_heads or n_head"),
        (MISTRAL | {"num_hidden_layers": "32"}, r"got `str` - at `\$\.num_hidden_layers"),
        (MISTRAL | {"num_hidden_layers": True}, r"got `bool` - at `\$\.num_hidden_layers"),
        (MISTRAL | {"num_hidden_layers": 0}, r">= 1 - at `\$\.num_hidden_layers"),
        (MISTRAL | {"num_attention_heads": 0}, r">= 1 - at `\$\.num_attention_heads"),
        (MISTRAL | {"vocab_size": 10**400}, r"vocab_size"),
        (MISTRAL | {"num_attention_heads": 8192}, "at least 1"),
        (MISTRAL | {"layer_types": 3}, r"got `int` - at `\$\.layer_types"),
        (MISTRAL | {"architectures": 5}, r"got `int` - at `\$\.architectures"),
        ({"text_config": "text"}, "got `str`"),
        ({"text_config": MISTRAL | {"hidden_size": -1}}, r"at `\$\.hidden_size"),
    ],
)
def test_model_that_is_not_known_is_refused(config, sentence):
    with pytest.raises(ValueError, match=sentence):
        shape_of(config)


@pytest.mark.parametrize(
    ("name", "billions", "active_billions", "kv_bytes"),
    [
        # Mixtral of Experts (arXiv 2401.04088): 47B, of which 13B for a token.
        ("Mixtral-8x7B", 46.7, 12.9, 2 * 32 * 8 * 128 * 2),
        # Qwen3 Technical Report (arXiv 2505.09388): 30B, 3B; the model card has 30.5B and 3.3B.
        ("Qwen3-30B-A3B", 30.5, 3.35, 2 * 48 * 4 * 128 * 2),
        # DeepSeek-V3 Technical Report (arXiv 2412.19437): 671B, 37B. Insights into DeepSeek-V3
        # (ISCA 2025, arXiv 2505.09343), table 1: 70.272 KB of cache per token.
        ("DeepSeek-V3", 671.0, 37.6, 70_272),
    ],
)
def test_models_of_experts_have_their_published_sizes(name, billions, active_billions, kv_bytes):
    model = MODELS[name]
    embeddings = 2 * model.head_parameters
    assert model.weight_bytes / 2e9 == pytest.approx(billions, rel=0.005)
    assert (model.active_parameters + embeddings) / 1e9 == pytest.approx(active_billions, rel=0.005)
    assert model.kv_bytes_per_token == kv_bytes


def test_gpt_oss_has_its_published_sizes():
    """gpt-oss model card (arXiv 2508.10925), table 1: 19.12B of MLP, 0.64B of attention, 20.91B in
    all; 3.61B active, the input embedding not counted."""
    model = MODELS["gpt-oss-20b"]
    assert model.expert_parameters / 1e9 == pytest.approx(19.12, rel=0.005)
    assert model.num_layers * model.attention_parameters / 1e9 == pytest.approx(0.64, rel=0.01)
    assert model.weight_bytes / 2e9 == pytest.approx(20.91, rel=0.005)
    active = model.active_parameters + model.head_parameters
    assert active / 1e9 == pytest.approx(3.61, rel=0.005)


def test_gemma_has_its_published_sizes():
    """Gemma 3 Technical Report (arXiv 2503.19786), table 1: 25,600M without embeddings, 1,416M
    embeddings; five layers with a window of 1,024 tokens for each without one."""
    model = MODELS["Gemma3-27B"]
    assert model.parameters / 1e9 == pytest.approx(25.6, rel=0.005)
    assert model.head_parameters / 1e9 == pytest.approx(1.416, rel=0.005)
    assert model.kv_bytes_per_token == 2 * 62 * 16 * 128 * 2
