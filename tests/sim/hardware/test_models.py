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


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (MISTRAL, MODELS["Mistral-7B"]),
        (OPT, MODELS["OPT-13B"]),
        (HEADS_OF_THEIR_OWN, ModelShape(32, 4096, 32, 8, 256, 14336, 32000)),
    ],
)
def test_model_shape_follows_its_published_configuration(config, shape):
    assert shape_of(config) == shape


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (MISTRAL | {"num_local_experts": 8}, "dense models, and it is a mixture of experts"),
        (MISTRAL | {"kv_lora_rank": 512}, "latent cache"),
        ({"hidden_size": 4096}, "does not tell num_attention_heads or n_head"),
        (MISTRAL | {"num_hidden_layers": "32"}, "does not tell num_hidden_layers"),
        (MISTRAL | {"num_hidden_layers": 0}, "at least 1"),
    ],
)
def test_model_that_is_no_dense_decoder_is_refused(config, sentence):
    with pytest.raises(ValueError, match=sentence):
        shape_of(config)
