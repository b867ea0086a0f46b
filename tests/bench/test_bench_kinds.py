"""``macroserve bench engine``: a model that sees images in stock vLLM and in our engine."""

import pytest

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from macroserve.bench import kinds  # noqa: E402
from macroserve.bench.quickstart import quickstart_settings  # noqa: E402


@pytest.mark.integration
async def test_tokens_about_images_are_those_of_stock_vllm() -> None:
    figures = await kinds.measure(quickstart_settings(), {"vlm": kinds.KINDS["vlm"]})
    assert figures == {"engine.vlm": 1}
