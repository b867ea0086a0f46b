"""A load for measurements has prompts that are in no cache."""

import asyncio
from typing import Any

from macroserve.bench.real_engine import serve
from macroserve.core.request import Slo
from macroserve.engine.engine import Leave
from macroserve.engine.tokens import Choice, TokenReader, TokenRequest, unpack
from macroserve.workload.arrivals import Arrival


class Prompts:
    """An engine that records prompts and answers each with one token."""

    def __init__(self) -> None:
        self.kept: list[list[int]] = []

    async def submit(self, request: TokenRequest, reader: TokenReader) -> Leave:
        self.kept.append(unpack(request.token_ids))
        reader.put(Choice([5], "length"))
        return lambda num_tokens: None


def test_prompts_of_a_load_share_no_prefix_cache() -> None:
    engine: Any = Prompts()
    for name in ("first", "second"):
        asyncio.run(serve(engine, [Arrival(0.0, 64, 1)] * 2, Slo(1.0, 0.1), name))
    beginnings = {tuple(prompt[:16]) for prompt in engine.kept}
    assert len(beginnings) == 4, "a block has 16 tokens at least"
    assert {len(prompt) for prompt in engine.kept} == {64}
