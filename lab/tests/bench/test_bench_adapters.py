"""``macroserve bench engine``: requests of adapters in stock vLLM and in our engine."""

import pytest

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from macroserve_lab.bench import engine_pairs  # noqa: E402
from macroserve_lab.bench.quickstart import quickstart_settings  # noqa: E402


@pytest.mark.integration
async def test_responses_of_adapters_are_those_of_stock_vllm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_pairs, "NUM_ADAPTERS", 2)
    monkeypatch.setattr(engine_pairs, "NUM_PROMPTS", 6)
    figures = await engine_pairs.measure_adapters(quickstart_settings(), num_rounds=1)
    assert figures["engine.lora.tokens_equal"] == 1
    assert 0 < figures["engine.lora.speedup_of_stock"] < 100
