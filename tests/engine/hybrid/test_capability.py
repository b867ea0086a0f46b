"""The hybrid cache is supported for some models and setups, and others give a reason."""

import json

import pytest

from macroserve.core.hybrid_cache import ARCHITECTURES, decide_hybrid_cache
from macroserve.core.request import Slo
from macroserve.core.status import Pool
from macroserve.core.strategies import STRATEGIES, strategy
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.platforms import current_platform  # noqa: E402

from macroserve.engine.vllm import options  # noqa: E402
from macroserve.engine.vllm.hybrid.capability import ATTENTION, find  # noqa: E402
from macroserve.engine.vllm.options import engine_args, with_hybrid_cache  # noqa: E402

pytestmark = pytest.mark.integration

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "torch_dtype": "float32",
}
GQA = LLAMA | {"num_key_value_heads": 2}
QWEN = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
OPT = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 512,
    "ffn_dim": 2048,
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "word_embed_proj_dim": 512,
    "torch_dtype": "float32",
}
MLA = LLAMA | {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "kv_lora_rank": 64,
    "q_lora_rank": None,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
}


@pytest.fixture
def vllm_args(tmp_path):
    def build(config, name="aptserve", ranks=1, **args):
        (tmp_path / "config.json").write_text(json.dumps(config))
        settings = EngineSettings(
            model=str(tmp_path),
            served_name="m",
            max_model_len=1024,
            strategy=name,
            dtype="float32",
            slo=Slo(1.0, 1.0),
            tensor_parallel=ranks,
            args={"skip_tokenizer_init": True, **args},
        )
        return engine_args(settings, Pool.LP, "/nowhere")

    return build


@pytest.fixture
def verdict(vllm_args):
    def build(config, setting="Auto", name="aptserve", **given):
        args = vllm_args(config, name, **given)
        return decide_hybrid_cache(
            strategy(name), setting, lambda: find(args.create_engine_config())
        )

    return build


@pytest.mark.parametrize(
    ("config", "ranks", "on", "part"),
    [
        pytest.param(LLAMA, 1, True, "0.50", id="llama"),
        pytest.param(OPT, 1, True, "0.50", id="opt"),
        pytest.param(QWEN, 1, True, "0.50", id="qwen"),
        pytest.param(LLAMA, 4, True, "0.50", id="each-rank-keeps-its-part"),
        pytest.param(LLAMA | {"num_key_value_heads": 4}, 1, False, "1.00", id="gqa-of-two"),
        pytest.param(GQA, 1, False, "2.00", id="gqa"),
        pytest.param(GQA, 4, False, "1.00", id="ranks-that-repeat-heads"),
        pytest.param(GQA, 8, True, "0.50", id="ranks-that-repeat-heads-often"),
    ],
)
def test_hybrid_cache_auto_is_on_if_hidden_states_are_smaller(verdict, config, ranks, on, part):
    found = verdict(config, ranks=ranks)
    assert found.on is on
    assert str(found) == (
        f"{'on' if on else 'off'}: hidden states take {part} of the memory of keys and values"
    )


def test_hybrid_cache_on_is_on_if_the_model_supports_it(verdict):
    assert verdict(GQA, "On").on


def test_hybrid_cache_off_is_off(verdict):
    assert str(verdict(LLAMA, "Off")) == "off: spec.engine.hybridCache is Off"


@pytest.mark.parametrize(
    ("config", "args", "reason"),
    [
        pytest.param(MLA, {}, "latent attention (MLA)", id="mla"),
        pytest.param(
            LLAMA,
            {"pipeline_parallel_size": 2},
            "a pipeline starts a batch before the previous one has ended",
            id="pipeline",
        ),
        pytest.param(
            LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"},
            {},
            "does not support the attention of MistralForCausalLM",
            id="unknown-architecture",
        ),
        pytest.param(
            QWEN | {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 128},
            {},
            "sliding windows",
            id="sliding-window",
        ),
        pytest.param(
            LLAMA,
            {"attention_backend": "FLASHINFER"},
            "does not support the attention backend FLASHINFER",
            id="backend",
        ),
        pytest.param(
            LLAMA,
            {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
            "KV connector",
            id="connector",
        ),
        pytest.param(
            GQA,
            {"ranks": 4, "decode_context_parallel_size": 2},
            "decode context parallelism",
            id="context-parallel",
        ),
        pytest.param(LLAMA, {"enable_prefix_caching": True}, "prefix caching", id="prefixes"),
        pytest.param(LLAMA, {"enable_lora": True}, "LoRA", id="lora"),
        pytest.param(LLAMA, {"kv_cache_dtype": "fp8_e5m2"}, "quantized", id="quantized-cache"),
        pytest.param(
            LLAMA,
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
            "speculative decoding",
            id="drafts",
        ),
    ],
)
def test_hybrid_cache_of_an_unsupported_setup_tells_the_reason(
    verdict, config, args, reason, monkeypatch
):
    # Drafts by n-grams need a package.
    monkeypatch.setattr(options, "find_spec", lambda name: name)
    found = verdict(config, **args)
    assert not found.on
    assert reason in found.reason
    with pytest.raises(ValueError, match=r"hybridCache is On, but ") as refused:
        verdict(config, "On", **args)
    assert reason in str(refused.value)


def test_each_architecture_of_the_decision_has_a_known_attention_block():
    assert sorted(ATTENTION) == sorted(ARCHITECTURES)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("config", [LLAMA, OPT], ids=["llama", "opt"])
def test_hybrid_cache_auto_depends_on_the_strategy(verdict, config, name):
    """``unified`` keeps them if attention reads them directly; those with Apt-Serve's value also if
    keys and values are recomputed."""
    found = verdict(config, name=name)
    by_value = {"aptserve", "aptserve-s", "macro"}
    assert found.on == (name in by_value or (name == "unified" and config is OPT))
    if not found.on:
        assert name in found.reason


@pytest.mark.parametrize("name", STRATEGIES)
def test_hybrid_cache_on_is_on_with_any_strategy(verdict, name):
    assert verdict(LLAMA, "On", name=name).on


@pytest.mark.parametrize(
    ("args", "on_cpu", "backend"),
    [
        ({}, True, None),
        ({}, False, "FLASH_ATTN"),
        ({"attention_backend": "TRITON_ATTN"}, False, "TRITON_ATTN"),
        ({"attention_config": {"backend": "TRITON_ATTN"}}, False, "TRITON_ATTN"),
    ],
)
def test_hybrid_cache_on_a_gpu_uses_a_supported_backend(
    vllm_args, monkeypatch, args, on_cpu, backend
):
    given = vllm_args(LLAMA, **args)
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: on_cpu)
    chosen_args = with_hybrid_cache(given)
    monkeypatch.undo()
    chosen = chosen_args.create_engine_config().attention_config.backend
    assert (chosen and chosen.name) == backend
