"""A load for measurements has prompts that are in no cache."""

import asyncio
from types import SimpleNamespace
from typing import Any

from macroserve.bench.real_engine import serve
from macroserve.core.request import Slo
from macroserve.workload.arrivals import Arrival


class Prompts:
    """An engine that records prompts and answers each with one token."""

    def __init__(self) -> None:
        self.llm = self
        self.kept: list[Any] = []

    async def generate(self, prompt: Any, params: object, request_id: str) -> Any:
        self.kept.append(prompt)
        yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[5])])


def test_prompts_of_a_load_share_no_prefix_cache() -> None:
    engine: Any = Prompts()
    for name in ("first", "second"):
        asyncio.run(serve(engine, [Arrival(0.0, 64, 1)] * 2, Slo(1.0, 0.1), name))
    beginnings = {tuple(prompt["prompt_token_ids"][:16]) for prompt in engine.kept}
    assert len(beginnings) == 4, "a block has 16 tokens at least"
    assert {len(prompt["prompt_token_ids"]) for prompt in engine.kept} == {64}
