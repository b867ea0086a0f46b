"""A real engine under a load of known lengths, timed from its client's view."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from time import perf_counter

import msgspec

from macroserve.api.messages import RequestInfo
from macroserve.core.request import Slo
from macroserve.core.shapes import DeviceShape, ModelShape
from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.engine.tokens import Choice, TokenRequest
from macroserve.engine.vllm.engine import VllmEngine
from macroserve.sim.instance import FixedLatencyModel
from macroserve.workload.arrivals import Arrival

VOCABULARY = 1000
"""Bound of token ids in prompts, which is below every model's vocabulary."""
PATIENCE_S = 300.0
"""Maximum seconds from the last arrival to the end of the last answer: on a shared machine, an
engine may take minutes for the work of twenty seconds."""


@dataclass(frozen=True, slots=True)
class Answer:
    tokens_s: tuple[float, ...]
    """Seconds from the request's arrival to each token."""

    def attained(self, slo: Slo) -> bool:
        first_s, last_s = self.tokens_s[0], self.tokens_s[-1]
        num_after, num_slow = len(self.tokens_s) - 1, slo.num_slow(self.gaps_s)
        return slo.is_met(first_s, last_s - first_s, num_after, num_slow)

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in pairwise(self.tokens_s)]


@asynccontextmanager
async def started(settings: EngineSettings) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(settings, Pool.LP)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()


async def serve(
    engine: VllmEngine, arrivals: Sequence[Arrival], slo: Slo, name: str
) -> list[Answer]:
    """Send each arrival at its time, and return the answers. Raises TimeoutError if the engine is
    too slow.

    name: part of the request ids, unique for each call on an engine.
    """
    began_s = perf_counter()

    async def answer(index: int, arrival: Arrival) -> Answer:
        await asyncio.sleep(began_s + arrival.at_s - perf_counter())
        return await _generate(engine, f"{name}-{index}", arrival, slo, began_s + arrival.at_s)

    async with asyncio.timeout(arrivals[-1].at_s + PATIENCE_S):
        return await asyncio.gather(*(answer(*each) for each in enumerate(arrivals)))


async def _generate(
    engine: VllmEngine, request_id: str, arrival: Arrival, slo: Slo, arrived_s: float
) -> Answer:
    info = RequestInfo(route_id=request_id, age_s=perf_counter() - arrived_s, slo=slo)
    reader = TimedReader(arrived_s)
    prompt = prompt_tokens(Random(request_id), arrival.num_prompt_tokens)
    await engine.submit(TokenRequest.greedy(info, prompt, arrival.num_output_tokens), reader)
    await reader.ended
    return Answer(tuple(reader.tokens_s))


class TimedReader:
    """The reader of a request's tokens and of their times.

    Attributes:
        tokens_s: seconds from ``arrived_s`` to each token.
        ended: raises RuntimeError if the request failed.
    """

    def __init__(self, arrived_s: float) -> None:
        self.token_ids: list[int] = []
        self.tokens_s: list[float] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrived_s = arrived_s

    def put(self, choice: Choice) -> None:
        ids = choice.token_ids or []
        self.token_ids += ids
        self.tokens_s += [perf_counter() - self._arrived_s] * len(ids)
        if choice.finish_reason is not None:
            self.ended.set_result(None)

    def fail(self, message: str) -> None:
        self.ended.set_exception(RuntimeError(message))


def prompt_tokens(random: Random, num_tokens: int) -> list[int]:
    """Draw a prompt that no prefix cache contains."""
    return random.choices(range(1, VOCABULARY), k=num_tokens)


async def learned(engine: VllmEngine) -> FixedLatencyModel:
    """Return the latency model of the engine's scheduler."""
    said = await engine.command("latency")
    return FixedLatencyModel(
        msgspec.convert(said["model"], ModelShape),
        msgspec.convert(said["device"], DeviceShape),
        said["coefficients"],
    )
