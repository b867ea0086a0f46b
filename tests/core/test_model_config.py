"""Published configurations give the parts of a shape."""

import pytest

from macroserve.core.model_config import experts_of, latent_of, window_of
from macroserve.core.shapes import Experts, LatentKv, Window

DEEPSEEK_V3 = {
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "intermediate_size": 18432,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_hidden_layers": 61,
}
MIXTRAL = {
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "sliding_window": None,
}
GPT_OSS = {
    "num_hidden_layers": 24,
    "num_local_experts": 32,
    "experts_per_token": 4,
    "intermediate_size": 2880,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}
GEMMA3 = {"model_type": "gemma3_text", "num_hidden_layers": 62, "sliding_window": 1024}
QWEN2 = {"num_hidden_layers": 28, "sliding_window": 131072, "use_sliding_window": False}
MISTRAL = {"model_type": "mistral", "num_hidden_layers": 32, "sliding_window": 4096}


@pytest.mark.parametrize(
    ("config", "experts"),
    [
        (DEEPSEEK_V3, Experts(256, 8, 2048, shared_size=2048, num_dense_layers=3)),
        (MIXTRAL, Experts(8, 2, 14336)),
        (DEEPSEEK_V3 | {"num_hidden_layers": 2}, Experts(256, 8, 2048, 2048, num_dense_layers=2)),
        (GPT_OSS, Experts(32, 4, 2880)),
        (GEMMA3, None),
    ],
)
def test_experts_follow_the_configuration(config, experts):
    assert experts_of(config) == experts


def test_latent_vector_follows_the_configuration():
    assert latent_of(DEEPSEEK_V3) == LatentKv(512, 64, 128, 128, query_rank=1536)
    assert latent_of(MIXTRAL) is None


@pytest.mark.parametrize(
    ("config", "window"),
    [
        (GPT_OSS, Window(128, 12)),
        (GEMMA3, Window(1024, 52)),
        (MISTRAL, Window(4096, 32)),
        (QWEN2, None),
        (MIXTRAL, None),
        (GPT_OSS | {"layer_types": ["full_attention"] * 24}, None),
        (GPT_OSS | {"num_hidden_layers": 3}, Window(128, 2)),
        (MISTRAL | {"num_hidden_layers": 30, "sliding_window_pattern": "LLLG"}, Window(4096, 23)),
    ],
)
def test_window_follows_the_configuration(config, window):
    assert window_of(config) == window
