"""``macroserve bench engine``: models of several kinds in stock vLLM and in our engine."""

import pytest

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from macroserve_lab.bench import engine_tokens  # noqa: E402
from macroserve_lab.bench.quickstart import quickstart_settings  # noqa: E402


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["vlm", "mla", "recurrent"])
async def test_tokens_of_a_kind_are_those_of_stock_vllm(kind: str) -> None:
    figures = await engine_tokens.measure_kinds(
        quickstart_settings(), {kind: engine_tokens.KINDS[kind]}
    )
    assert figures == {f"engine.{kind}": 1}
