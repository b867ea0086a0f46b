"""A pair of engines has the same settings: one is ours, and one has vLLM's own scheduler.

Both run, and one of them serves at a time, so that a slow minute of the machine meets both. The one
that started first takes some percent longer for the same steps, whichever it is, so a comparison
takes pairs of both orders.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import NamedTuple, TypeVar

from vllm.inputs import TokensPrompt
from vllm.v1.engine.async_llm import AsyncLLM

from macroserve.bench.real_engine import prompt_tokens, started
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.engine import VllmEngine
from macroserve.engine.vllm.greedy import greedy
from macroserve.engine.vllm.options import stock_args

WARM_UP_TOKENS, WARM_UP_NEW_TOKENS = 640, 16

Served = TypeVar("Served")


class EnginePair(NamedTuple):
    """The pair runs on one machine."""

    ours: VllmEngine
    stock: AsyncLLM

    async def rounds(
        self, count: int, serve: Callable[[AsyncLLM, int], Awaitable[Served]]
    ) -> list[tuple[Served, Served]]:
        """Let both serve each round, in turns; return what ours gave and what the other one gave.

        serve: called with an engine and the number of the round.
        """
        found: list[tuple[Served, Served]] = []
        for round_ in range(count):
            order = (self.stock, self.ours.llm) if round_ % 2 else (self.ours.llm, self.stock)
            served = {llm: await serve(llm, round_) for llm in order}
            found.append((served[self.ours.llm], served[self.stock]))
        return found


@asynccontextmanager
async def engine_pair(settings: EngineSettings, *, ours_first: bool) -> AsyncIterator[EnginePair]:
    """Start both engines, ours before the other one or after it."""
    async with AsyncExitStack() as stack:
        if ours_first:
            ours = await stack.enter_async_context(started(settings))
            stock = await stack.enter_async_context(stock_engine(settings))
        else:
            stock = await stack.enter_async_context(stock_engine(settings))
            ours = await stack.enter_async_context(started(settings))
        yield EnginePair(ours, stock)


@asynccontextmanager
async def stock_engine(settings: EngineSettings) -> AsyncIterator[AsyncLLM]:
    """Start the same engine with vLLM's own scheduler, and warm it up."""
    llm = AsyncLLM.from_engine_args(stock_args(settings))
    try:
        prompt = TokensPrompt(prompt_token_ids=prompt_tokens(Random("warm-up"), WARM_UP_TOKENS))
        async for _ in llm.generate(prompt, greedy(WARM_UP_NEW_TOKENS), "warm-up"):
            pass
        yield llm
    finally:
        llm.shutdown()
