"""The decision on the hybrid cache depends on the strategy, the setting and the model."""

from dataclasses import replace
from typing import Any

import pytest

from macroserve.core.hybrid_cache import (
    HybridCacheFacts,
    HybridCacheFit,
    decide_hybrid_cache,
    fit_of,
    keeping_hidden,
)
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import HybridCache

HALF = HybridCacheFit(0.5, direct=False)


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategy_keeps_hidden_states_by_a_rule_if_its_engine_does(name: str) -> None:
    own = STRATEGIES[name]
    assert not keeping_hidden(own, on=False).keeps_hidden
    rule = keeping_hidden(own, on=True).hybrid_cache
    assert rule is (own.hybrid_cache if own.keeps_hidden else HybridCache.CHEAP)


@pytest.mark.parametrize("name", [n for n in STRATEGIES if not STRATEGIES[n].keeps_hidden])
def test_auto_of_a_strategy_without_hidden_states_asks_no_model(name: str) -> None:
    found = decide_hybrid_cache(STRATEGIES[name], "Auto", lambda: pytest.fail("asked"))
    assert not found.on and "spec.engine.hybridCache On" in found.reason


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("fit", [HALF, HybridCacheFit(2.0, direct=False)])
def test_on_keeps_hidden_states_with_any_strategy_and_model(name: str, fit: HybridCacheFit) -> None:
    assert decide_hybrid_cache(STRATEGIES[name], "On", lambda: fit).on


@pytest.mark.parametrize("name", STRATEGIES)
def test_on_of_a_model_that_cannot_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ValueError, match="hybridCache is On, but its heads are of glass"):
        decide_hybrid_cache(STRATEGIES[name], "On", lambda: "its heads are of glass")


def test_architectures_and_backends_without_an_obstacle_fit() -> None:
    facts = HybridCacheFacts(architecture="OPTForCausalLM", hidden_size=512)
    assert fit_of(facts, lambda: 0.5) == HybridCacheFit(0.5, direct=True)
    rotary = replace(facts, architecture="LlamaForCausalLM", attention_backend="FLASH_ATTN")
    assert fit_of(rotary, lambda: 2.0) == HybridCacheFit(2.0, direct=False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"has_latent": True}, "latent attention"),
        ({"architecture": "MambaForCausalLM"}, "the attention of MambaForCausalLM"),
        ({"has_window": True}, "sliding window"),
        ({"has_dual_chunks": True}, "dual chunk"),
        ({"attention_backend": "FLASHINFER"}, "attention backend FLASHINFER"),
        ({"is_quantized": True}, "quantized"),
        ({"has_adapters": True}, "LoRA"),
        ({"drafts_tokens": True}, "speculative"),
        ({"moves_blocks": True}, "KV connector"),
        ({"num_stages": 2}, "pipeline"),
        ({"num_context_ranks": 2}, "context parallelism"),
        ({"shares_prefixes": True}, "prefix caching"),
        ({"num_ranks": 3}, "evenly"),
    ],
)
def test_obstacle_is_told_and_the_share_is_not_asked_for(change: Any, reason: str) -> None:
    facts = HybridCacheFacts(architecture="OPTForCausalLM", hidden_size=512)
    found = fit_of(replace(facts, **change), lambda: pytest.fail("asked"))
    assert isinstance(found, str) and reason in found
