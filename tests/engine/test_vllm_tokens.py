"""Greedy tokens of an instance's engine equal stock vLLM's, and its statuses add up."""

import asyncio
import random
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from support.iterated import QueueReader
from support.token_requests import token_request

from macroserve.core.health import BEAT_S, EngineBeat
from macroserve.core.request import Slo
from macroserve.core.status import InstanceStatus, Pool
from macroserve.engine.settings import EngineSettings
from macroserve.engine.status import StatusReceiver, decode
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: E402
from vllm.inputs import TokensPrompt  # noqa: E402
from vllm.v1.engine.async_llm import AsyncLLM  # noqa: E402

from macroserve.engine.vllm.engine import VllmEngine  # noqa: E402
from macroserve.engine.vllm.options import engine_args  # noqa: E402
from macroserve_lab.greedy import greedy  # noqa: E402

pytestmark = pytest.mark.integration

NUM_REQUESTS = 24


@dataclass(frozen=True)
class Work:
    prompt: list[int]
    num_tokens: int
    delay_s: float


def workload() -> list[Work]:
    rnd = random.Random(7)
    return [
        Work(
            [rnd.randrange(3, 2000) for _ in range(rnd.randrange(5, 700))],
            rnd.randrange(8, 40),
            rnd.random(),
        )
        for _ in range(NUM_REQUESTS)
    ]


async def stock_answer(llm: AsyncLLM, request_id: str, work: Work) -> list[int]:
    await asyncio.sleep(work.delay_s)
    prompt = TokensPrompt(prompt_token_ids=work.prompt)
    outputs = [o async for o in llm.generate(prompt, greedy(work.num_tokens), request_id)]
    return list(outputs[-1].outputs[0].token_ids)


async def answer(engine: VllmEngine, route_id: str, work: Work, slo: Slo) -> list[int]:
    await asyncio.sleep(work.delay_s)
    request = token_request(route_id, work.prompt, work.num_tokens, slo=slo)
    await engine.submit(request, reader := QueueReader())
    return [token for choice in await reader.rest() for token in choice.token_ids or []]


@pytest.fixture(scope="module")
def stock_tokens(settings: EngineSettings) -> list[list[int]]:
    """Return the tokens under vLLM's own scheduler."""

    async def run() -> list[list[int]]:
        ours = engine_args(settings, Pool.LP, "/nowhere")
        args = AsyncEngineArgs(
            model=ours.model,
            dtype=ours.dtype,
            max_model_len=ours.max_model_len,
            max_num_batched_tokens=ours.max_num_batched_tokens,
            block_size=ours.block_size,
            kv_cache_memory_bytes=ours.kv_cache_memory_bytes,
            enforce_eager=True,
            enable_prefix_caching=False,
        )
        llm = AsyncLLM.from_engine_args(args)
        try:
            return await asyncio.gather(
                *(stock_answer(llm, str(i), work) for i, work in enumerate(workload()))
            )
        finally:
            llm.shutdown()

    return asyncio.run(run())


# With engines that are stepped in this process, test_async_tokens has every strategy.
@pytest.mark.parametrize(
    ("name", "pool"),
    [
        ("unified", Pool.LP),
        ("ecoserve", Pool.LP),
        ("aptserve", Pool.LP),
        ("ascendra", Pool.HP),
    ],
)
def test_tokens_of_an_instances_engine_equal_stock_vllm(
    name: str,
    pool: Pool,
    settings: EngineSettings,
    stock_tokens: list[list[int]],
    tmp_path: Path,
) -> None:
    statuses: list[InstanceStatus] = []
    beats: list[EngineBeat] = []
    # Loose targets: nothing is offloaded, everything is generated here.
    slo = Slo(60.0, 0.2)
    route_ids = [f"route-{i}" for i in range(NUM_REQUESTS)]

    async def run() -> list[list[int]]:
        engine = VllmEngine(replace(settings, strategy=name), pool)
        try:
            path = str(tmp_path / "status")
            receiver = await StatusReceiver.listen(
                path, lambda data: statuses.append(decode(data)), beats.append
            )
            await engine.start(path)
            tokens = await asyncio.gather(
                *(
                    answer(engine, route_id, work, slo)
                    for route_id, work in zip(route_ids, workload(), strict=True)
                )
            )
            await asyncio.sleep(2 * BEAT_S)
            receiver.close()
            return tokens
        finally:
            await engine.stop()

    assert asyncio.run(run()) == stock_tokens
    assert {*route_ids} <= {i for s in statuses for i in s.admitted}
    assert beats[-1].num_unfinished == 0 and beats[-1].step_s == 0
    assert beats[-1].progress > 2 * NUM_REQUESTS
    last = statuses[-1]
    assert (last.num_running, last.num_waiting) == (0, 0)
    assert last.free_blocks == last.num_blocks
    assert last.finished == NUM_REQUESTS, "the requests of the warm-up do not count"
    assert [s.seq for s in statuses] == sorted(s.seq for s in statuses)
    phases = {s.phase for s in statuses}
    if name == "ecoserve":
        assert "mixed" not in phases, "a temporal strategy never mixes"


def test_engine_status_after_the_wire_is_unchanged() -> None:
    status = InstanceStatus(seq=3, saved_tpot_p10_s=None, admitted=("a", "b"))
    assert decode(msgspec.json.encode(status)) == status


def test_engine_with_one_seat_serves_all_requests_in_turn(
    settings: EngineSettings, stock_tokens: list[list[int]]
) -> None:
    """vLLM still knows the waiting requests when nothing runs."""
    one_seat = replace(settings, strategy="ecoserve", max_num_seqs=1)

    async def run() -> list[list[int]]:
        engine = VllmEngine(one_seat, Pool.LP)
        try:
            await engine.start()
            async with asyncio.timeout(60):
                return await asyncio.gather(
                    *(
                        answer(engine, str(i), replace(work, delay_s=0.0), settings.slo)
                        for i, work in enumerate(workload()[:5])
                    )
                )
        finally:
            await engine.stop()

    assert asyncio.run(run()) == stock_tokens[:5]
