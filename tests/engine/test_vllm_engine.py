"""Requests of an engine get their tokens, checks and ends, each on its own."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from support.iterated import QueueReader
from support.small_models import build_adapter
from support.token_requests import token_request

from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.engine.tokens import Choice, RefusedError, TokenRequest
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.v1.engine.core import EngineCore  # noqa: E402

from macroserve.engine.vllm.engine import VllmEngine  # noqa: E402

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

PROMPT = (7, 8, 9, 10)


@pytest.fixture(scope="module")
async def engine(
    settings: EngineSettings, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[VllmEngine]:
    adapter = build_adapter(tmp_path_factory.mktemp("sql"), Path(settings.model), seed=1)
    engine = VllmEngine(replace(settings, adapters={"sql": str(adapter)}), Pool.LP)
    await engine.start()
    yield engine
    await engine.stop()


async def choices(engine: VllmEngine, request: TokenRequest) -> list[Choice]:
    await engine.submit(request, reader := QueueReader())
    async with asyncio.timeout(60):
        return await reader.rest()


async def tokens(
    engine: VllmEngine, name: str, max_new_tokens: int = 12, **changes: Any
) -> list[int]:
    found = await choices(engine, token_request(name, PROMPT, max_new_tokens, **changes))
    return [token for choice in found for token in choice.token_ids or []]


async def test_request_that_names_an_adapter_gets_its_tokens(engine: VllmEngine) -> None:
    sql, own = await asyncio.gather(tokens(engine, "sql", adapter="sql"), tokens(engine, "own"))
    assert sql != own == await tokens(engine, "alone")


@pytest.mark.parametrize(
    ("wrong", "status", "says"),
    [
        ({"prompt": ()}, 400, "token ids"),
        ({"prompt": (123456, 7)}, 400, "vocabulary"),
        ({"sampling": {"temperature": -1.0}}, 400, "temperature"),
        ({"sampling": {"temperature": "hot"}}, 400, "temperature"),
        ({"max_new_tokens": 5000}, 400, "at most 1024 tokens"),
        ({"features": b"no image"}, 400, "cannot be decoded"),
        ({"adapter": "another"}, 404, "another"),
    ],
    ids=str,
)
async def test_request_that_cannot_be_served_is_refused_without_its_prompt(
    engine: VllmEngine, wrong: dict[str, Any], status: int, says: str
) -> None:
    with pytest.raises(RefusedError, match=says) as refused:
        await engine.submit(token_request("wrong", **wrong), QueueReader())
    assert refused.value.status == status
    assert "123456" not in refused.value.message
    assert engine.num_unfinished == 0


async def test_request_with_a_running_ones_id_is_refused(engine: VllmEngine) -> None:
    leave = await engine.submit(token_request("twice", PROMPT, 900), QueueReader())
    with pytest.raises(RefusedError, match="already running"):
        await engine.submit(token_request("twice", PROMPT, 900), QueueReader())
    leave(None)


async def test_sampling_of_an_ingress_with_a_newer_vllm_is_understood(engine: VllmEngine) -> None:
    sampling = {"temperature": 0.0, "ignore_eos": True, "of_a_newer_vllm": 1}
    assert await tokens(engine, "newer", sampling=sampling) == await tokens(engine, "today")


async def test_request_that_has_reasoned_reaches_the_core_so(
    engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grammar that begins after the reasoning needs it."""
    seen: list[bool | None] = []
    prepare = EngineCore.preprocess_add_request

    def spy(core: EngineCore, request: Any) -> Any:
        seen.append(request.reasoning_ended)
        return prepare(core, request)

    monkeypatch.setattr(EngineCore, "preprocess_add_request", spy)
    await tokens(engine, "reasoned", reasoning_ended=True)
    assert seen == [True]


async def test_request_whose_reader_fails_ends_no_other_one(engine: VllmEngine) -> None:
    class FailingReader(QueueReader):
        def put(self, choice: Choice) -> None:
            raise ValueError("no room")

    await engine.submit(token_request("failing", PROMPT), failing := FailingReader())
    assert len(await tokens(engine, "beside")) == 12
    with pytest.raises(RuntimeError, match="no room"):
        await failing.next()


@pytest.mark.parametrize(("num_tokens", "num_counted"), [(None, 0), (3, 3)])
async def test_request_that_ends_early_leaves_the_engine_and_counts_what_was_answered(
    engine: VllmEngine, num_tokens: int | None, num_counted: int
) -> None:
    labels = {"model_name": "tiny", "engine": "0"}

    def counted() -> tuple[float, float]:
        """Return the stopped requests and the tokens of finished ones."""
        stopped = REGISTRY.get_sample_value(
            "vllm:request_success_total", {**labels, "finished_reason": "stop"}
        )
        generated = REGISTRY.get_sample_value("vllm:request_generation_tokens_sum", labels)
        return stopped or 0.0, generated or 0.0

    before = counted()
    reader = QueueReader()
    leave = await engine.submit(token_request(f"ends-{num_tokens}", PROMPT, 900), reader)
    for _ in range(6):
        await reader.next()
    assert engine.num_unfinished == 1
    leave(num_tokens)
    leave(num_tokens)
    assert engine.num_unfinished == 0
    stopped, generated = counted()
    assert (stopped - before[0], generated - before[1]) == (num_tokens is not None, num_counted)
    assert not await engine.call(lambda core: core.scheduler.has_unfinished_requests())


async def test_first_choice_has_the_cached_tokens_of_the_prompt(engine: VllmEngine) -> None:
    prompt = [11 + position % 50 for position in range(3 * engine.shape.block_size + 1)]

    async def num_cached(name: str) -> list[int]:
        found = await choices(engine, token_request(name, prompt, 3))
        return [choice.num_cached for choice in found]

    assert sum(await num_cached("computes")) == 0
    first, *others = await num_cached("finds")
    assert first == 3 * engine.shape.block_size and not any(others)


async def test_tokens_of_a_step_come_together(engine: VllmEngine) -> None:
    """A sender has them in one frame."""
    steps: list[int] = []
    take = engine.running.take

    def watched(outputs: Any) -> None:
        steps.append(len(outputs.outputs))
        take(outputs)

    engine.running.take = watched
    await asyncio.gather(*(tokens(engine, f"together-{number}", 100) for number in range(20)))
    engine.running.take = take
    assert max(steps) == 20
    assert sum(steps) == 20 * 100


async def test_requests_whose_step_fails_fail_and_the_engine_has_a_fault(
    engine: VllmEngine,
) -> None:
    """No later test can use this engine."""
    await engine.submit(token_request("runs", PROMPT, 900), reader := QueueReader())
    assert (await reader.next()).token_ids

    def fail(core: EngineCore) -> None:
        def step() -> Any:
            raise MemoryError("no page left")

        core.step_fn = step

    await engine.call(fail)
    with pytest.raises(RuntimeError, match="the engine has failed"):
        await reader.rest()
    assert engine.fault == "its engine has failed"
    with pytest.raises(RefusedError, match="its engine has failed") as refused:
        await engine.submit(token_request("late", PROMPT), QueueReader())
    assert refused.value.status == 503
