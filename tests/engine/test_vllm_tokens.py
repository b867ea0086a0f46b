"""Greedy tokens of an engine process equal stock vLLM's, and its statuses add up."""

import asyncio
import os
import random
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from macroserve.core.health import BEAT_S, EngineBeat
from macroserve.core.request import Slo
from macroserve.core.status import InstanceStatus, Pool
from macroserve.engine.settings import EngineSettings
from macroserve.engine.status import StatusReceiver, decode
from macroserve.engine.tag import RequestTag
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: E402
from vllm.inputs import TokensPrompt  # noqa: E402
from vllm.v1.engine.async_llm import AsyncLLM  # noqa: E402

from macroserve.engine.vllm.engine import VllmEngine  # noqa: E402
from macroserve.engine.vllm.greedy import greedy  # noqa: E402
from macroserve.engine.vllm.options import engine_args  # noqa: E402

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


async def generate(llm: AsyncLLM, request_id: str, work: Work, args: dict | None) -> list[int]:
    await asyncio.sleep(work.delay_s)
    params = greedy(work.num_tokens, extra_args=args)
    prompt = TokensPrompt(prompt_token_ids=work.prompt)
    outputs = [output async for output in llm.generate(prompt, params, request_id)]
    return list(outputs[-1].outputs[0].token_ids)


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
                *(generate(llm, str(i), work, None) for i, work in enumerate(workload()))
            )
        finally:
            llm.shutdown()

    return asyncio.run(run())


# With engines in this process, test_async_tokens has every strategy.
@pytest.mark.parametrize(
    ("name", "pool"),
    [
        ("unified", Pool.LP),
        ("ecoserve", Pool.LP),
        ("aptserve", Pool.LP),
        ("ascendra", Pool.HP),
    ],
)
def test_tokens_of_an_engine_process_equal_stock_vllm(
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
    tags = [RequestTag(route_id=f"route-{i}", age_s=0.0, slo=slo) for i in range(NUM_REQUESTS)]

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
                    generate(engine.llm, str(i), work, tags[i].to_args())
                    for i, work in enumerate(workload())
                )
            )
            await asyncio.sleep(2 * BEAT_S)
            receiver.close()
            return tokens
        finally:
            await engine.stop()

    assert asyncio.run(run()) == stock_tokens
    assert {t.route_id for t in tags} <= {i for s in statuses for i in s.admitted}
    assert beats[-1].num_unfinished == 0 and beats[-1].step_s == 0
    assert beats[-1].pid != os.getpid() and beats[-1].progress > 2 * NUM_REQUESTS
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
                        generate(engine.llm, str(i), replace(work, delay_s=0.0), None)
                        for i, work in enumerate(workload()[:5])
                    )
                )
        finally:
            await engine.stop()

    assert asyncio.run(run()) == stock_tokens[:5]
