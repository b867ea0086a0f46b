"""Requests over frames get the tokens, checks and ends of vLLM's own token endpoint."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from support.iterated import QueueReader
from support.small_models import build_adapter

from macroserve.api.sse import SseParser
from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.engine.tokens import Choice, RefusedError, Stopped
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.entrypoints.scale_out.token_in_token_out.api_router import router  # noqa: E402

from macroserve.engine.vllm.engine import VllmEngine  # noqa: E402
from macroserve.engine.vllm.version import installed_version, release_of  # noqa: E402

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

Started = tuple[VllmEngine, Starlette]


@pytest.fixture(scope="module")
async def started(
    settings: EngineSettings, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Started]:
    adapter = build_adapter(tmp_path_factory.mktemp("sql"), Path(settings.model), seed=1)
    engine = VllmEngine(replace(settings, adapters={"sql": str(adapter)}), Pool.LP)
    app = await engine.start()
    app.include_router(router)
    yield engine, app
    await engine.stop()


def body(name: str, **sampling: Any) -> dict[str, Any]:
    return {
        "request_id": name,
        "token_ids": [7, 8, 9, 10],
        "stream": True,
        "sampling_params": {"temperature": 0, "max_tokens": 12, "ignore_eos": True, **sampling},
    }


class Event(msgspec.Struct):
    choices: list[Choice]


async def by_events(app: Starlette, request: dict[str, Any]) -> list[Choice]:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://instance") as http:
        answer = await http.post("/inference/v1/generate", json=request)
    *events, _ = SseParser().feed(answer.content)
    return [choice for event in events for choice in msgspec.json.decode(event, type=Event).choices]


@pytest.mark.parametrize("sampling", [{}, {"logprobs": 3}, {"logprobs": 0}, {"max_tokens": 1}])
async def test_choices_are_those_of_the_events(started: Started, sampling: dict[str, Any]) -> None:
    engine, app = started
    if "logprobs" in sampling and release_of(installed_version()) == "0.31":
        pytest.skip("vLLM's events name the tokens of logprobs by texts there")
    expected = await by_events(app, body("events", **sampling))
    await engine.submit(body("choices", **sampling), reader := QueueReader())
    found = await reader.rest()
    assert [t for c in found for t in c.token_ids or []] == [
        t for c in expected for t in c.token_ids or []
    ]
    assert found[-1].finish_reason == expected[-1].finish_reason == "length"
    contents = [
        [token for c in choices for token in (c.logprobs and c.logprobs.content) or ()]
        for choices in (found, expected)
    ]
    assert contents[0] == contents[1]
    assert bool(contents[0]) == ("logprobs" in sampling)


async def test_request_that_names_an_adapter_gets_its_tokens(started: Started) -> None:
    engine, app = started

    async def tokens(name: str, model: str | None) -> list[int]:
        await engine.submit({**body(name), "model": model}, reader := QueueReader())
        return [token for choice in await reader.rest() for token in choice.token_ids or []]

    sql, own = await asyncio.gather(tokens("sql", "sql"), tokens("own", None))
    assert sql != own == await tokens("alone", None)
    events = await by_events(app, {**body("events-sql"), "model": "sql"})
    assert sql == [token for choice in events for token in choice.token_ids or []]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"sampling_params": {"temperature": -1}}, "temperature"),
        ({"model": "another"}, "another"),
        ({"sampling_params": {"stop": ["x"]}}, "stop"),
    ],
)
async def test_request_that_vllm_refuses_is_refused_without_its_prompt(
    started: Started, wrong: dict[str, Any], says: str
) -> None:
    engine, _ = started
    with pytest.raises(RefusedError, match=says) as refused:
        await engine.submit({**body("wrong"), "token_ids": [123456, 7], **wrong}, QueueReader())
    assert refused.value.status in (400, 404)
    assert "123456" not in refused.value.message


async def test_request_of_an_ingress_with_a_newer_vllm_is_served(started: Started) -> None:
    engine, _ = started
    request = {**body("newer", of_a_newer_vllm=1), "also_new": 2}
    await engine.submit(request, reader := QueueReader())
    assert (await reader.rest())[-1].finish_reason == "length"


async def test_request_that_has_reasoned_reaches_the_engine_so(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grammar that begins after the reasoning needs it; vLLM 0.31's endpoint does not read it."""
    engine, _ = started
    add, seen = engine.llm.add_request, {}

    def spy(*args: Any, **kwargs: Any) -> Any:
        seen.update(kwargs)
        return add(*args, **kwargs)

    monkeypatch.setattr(engine.llm, "add_request", spy)
    request = {**body("reasoned", max_tokens=1), "reasoning_ended": True}
    await engine.submit(request, reader := QueueReader())
    await reader.rest()
    assert seen["reasoning_ended"] is True


class FailingReader(QueueReader):
    """The reader fails at each choice."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[str] = []

    def put(self, choice: Choice) -> None:
        raise ValueError("no room")

    def fail(self, message: str) -> None:
        self.failures.append(message)


async def test_request_whose_reader_fails_ends_no_other_one(started: Started) -> None:
    engine, _ = started
    await engine.submit(body("failing"), failing := FailingReader())
    await engine.submit(body("beside"), reader := QueueReader())
    assert (await reader.rest())[-1].finish_reason == "length"
    assert "no room" in failing.failures


async def test_request_whose_reader_leaves_ends(started: Started) -> None:
    engine, _ = started
    leave = await engine.submit(body("closed", max_tokens=900), reader := QueueReader())
    assert (await reader.next()).token_ids
    assert engine.num_unfinished == 1
    await leave()
    assert engine.num_unfinished == 0


async def test_request_that_has_met_a_stop_string_ends_as_stopped(started: Started) -> None:
    engine, _ = started
    await engine.submit(body("stopped", max_tokens=900), reader := QueueReader())
    assert (await reader.next()).token_ids
    await engine.end_stopped(Stopped("stopped", 1))
    async with asyncio.timeout(30):
        rest = await reader.rest()
    assert rest[-1].finish_reason == "stop"


async def test_first_choice_tells_the_cached_tokens_of_the_prompt(started: Started) -> None:
    engine, _ = started
    block_size = engine.shape.block_size
    prompt = [11 + position % 50 for position in range(3 * block_size + 1)]

    async def num_cached(name: str) -> list[int]:
        request = {**body(name, max_tokens=3), "token_ids": prompt}
        await engine.submit(request, reader := QueueReader())
        return [choice.num_cached for choice in await reader.rest()]

    assert sum(await num_cached("computes")) == 0
    first, *others = await num_cached("finds")
    assert first == 3 * block_size and not any(others)
