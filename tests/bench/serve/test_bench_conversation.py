"""Conversations against a real server: each prompt contains everything before it."""

import asyncio
import json
from dataclasses import replace

import pytest
from aiohttp import web
from typer import Typer
from typer.testing import CliRunner

from macroserve.bench.serve.client import NO_TOKEN_IDS, Conversation, LoadClient, Target
from macroserve.bench.serve.metrics import summarize
from macroserve.bench.serve.payload import Endpoint, PayloadMaker
from macroserve.bench.serve.record import Failure, RequestRecord
from macroserve.bench.serve.stream import StreamMeter
from macroserve.cli.bench_serve import serve
from macroserve.core.request import Slo
from macroserve.workload.arrivals import Arrival, Turn

PATIENCE_S = 20.0
CHAT = Arrival(0.0, 8, 3, turns=(Turn(0.05, 4, 2), Turn(0.0, 5, 1)))
RECORD = RequestRecord(0, 0.0, 0.0, 7.0, 8, 3, num_tokens=3)


async def run(
    url: str,
    plan: list[Arrival],
    kind: Endpoint = Endpoint.COMPLETIONS,
    stop: asyncio.Event | None = None,
    max_model_len: int | None = None,
) -> list[RequestRecord]:
    payloads = PayloadMaker("tiny", kind, 100, (0,))
    async with asyncio.timeout(PATIENCE_S), LoadClient(Target(url, PATIENCE_S)) as client:
        return await client.run(
            plan, payloads, stop or asyncio.Event(), lambda: None, lambda _: None, max_model_len
        )


async def test_completions_of_a_conversation_hold_the_token_ids_before_them(endpoint) -> None:
    records = await run(endpoint.url, [CHAT])
    assert [(record.index, record.turn, record.failure) for record in records] == [
        (0, 0, None),
        (0, 1, None),
        (0, 2, None),
    ]
    first, second, third = (body["prompt"] for body in endpoint.bodies)
    assert len(first) == 8
    assert second[:11] == [*first, 1001, 1002, 1003] and len(second) == 15
    assert third[:17] == [*second, 1001, 1002] and len(third) == 22
    assert [body["max_tokens"] for body in endpoint.bodies] == [3, 2, 1]
    # The ids of the last response are not used.
    asked = [body.get("return_token_ids", False) for body in endpoint.bodies]
    assert asked == [True, True, False]


async def test_chat_of_a_conversation_holds_the_messages_before_it(endpoint) -> None:
    await run(endpoint.url, [CHAT], Endpoint.CHAT)
    last = endpoint.bodies[-1]["messages"]
    assert [message["role"] for message in last] == ["user", "assistant"] * 2 + ["user"]
    assert [message["content"] for message in last[1::2]] == [" 1 2 3", " 1 2"]
    assert [len(message["content"].split()) for message in last[::2]] == [8, 4, 5]
    assert endpoint.bodies[1]["messages"] == last[:3]
    assert "return_token_ids" not in endpoint.bodies[0]


async def test_turn_leaves_its_think_time_after_the_response_before_it(endpoint) -> None:
    first, second, third = await run(endpoint.url, [CHAT])
    assert second.scheduled_s == pytest.approx(first.ended_s + 0.05)
    assert third.scheduled_s == second.ended_s
    # asyncio may wake a timer early by the resolution of its clock.
    assert second.sent_s > first.ended_s + 0.049


async def test_conversations_do_not_wait_for_each_other(endpoint) -> None:
    both = asyncio.Event()

    async def answer_once_both_are_there(request: web.Request, body: dict) -> web.StreamResponse:
        if len(endpoint.bodies) >= 2:
            both.set()
        await both.wait()
        return await endpoint.answer_fully(request, body)

    endpoint.answer = answer_once_both_are_there
    records = await run(endpoint.url, [CHAT, CHAT])
    assert [(record.index, record.turn) for record in records] == [
        (index, turn) for index in range(2) for turn in range(3)
    ]
    prompts = [tuple(body["prompt"]) for body in endpoint.bodies]
    assert len(set(prompts)) == 6


async def test_failed_request_ends_its_conversation_alone(endpoint) -> None:
    async def fail_first(request: web.Request, body: dict) -> web.StreamResponse:
        if len(endpoint.bodies) == 1:
            return web.Response(status=500)
        return await endpoint.answer_fully(request, body)

    endpoint.answer = fail_first
    failed, *others = await run(endpoint.url, [CHAT, CHAT._replace(at_s=0.05)])
    assert (failed.failure, failed.num_unsent) == (Failure.HTTP, 2)
    assert [record.failure for record in others] == [None] * 3
    assert summarize([failed, *others], Slo(1.0, 1.0)).num_unsent == 2


async def test_stopped_run_sends_no_further_turn(endpoint) -> None:
    stop = asyncio.Event()

    async def answer_and_stop(request: web.Request, body: dict) -> web.StreamResponse:
        response = await endpoint.answer_fully(request, body)
        stop.set()
        return response

    endpoint.answer = answer_and_stop
    [record] = await run(endpoint.url, [CHAT._replace(turns=(Turn(3600.0, 1, 1),))], stop=stop)
    assert (record.failure, record.num_unsent) == (None, 0)


async def test_conversation_ends_where_the_models_length_does(endpoint) -> None:
    first, second = await run(endpoint.url, [CHAT], max_model_len=22)
    assert (first.num_unsent, second.num_unsent) == (0, 1)
    assert len(await run(endpoint.url, [CHAT], max_model_len=23)) == 3


async def test_model_length_is_what_the_endpoint_lists_of_the_model(endpoint) -> None:
    models = [{"id": "tiny"}, {"id": "big", "max_model_len": 8192}]
    endpoint.models = lambda: web.json_response({"data": models})
    async with LoadClient(Target(endpoint.url, PATIENCE_S)) as client:
        assert await client.find_max_model_len("big") == 8192
        assert await client.find_max_model_len("tiny") is None
        assert await client.find_max_model_len("other") is None


def conversation(kind: Endpoint) -> Conversation:
    return Conversation(PayloadMaker("tiny", kind, 100, (0,)), 0, CHAT)


def test_completions_without_token_ids_fail_with_a_way_out() -> None:
    talk = conversation(Endpoint.COMPLETIONS)
    record = talk.take(RECORD, StreamMeter(keeps_answer=True))
    assert (record.failure, record.detail, record.num_unsent) == (
        Failure.MALFORMED,
        NO_TOKEN_IDS,
        2,
    )
    assert not talk.goes_on


def test_chat_goes_on_from_a_response_without_text() -> None:
    talk = conversation(Endpoint.CHAT)
    record = talk.take(RECORD, StreamMeter(keeps_answer=True))
    assert record.failure is None and talk.goes_on
    assert json.loads(talk.body())["messages"][1] == {"role": "assistant", "content": ""}
    # The endpoint's own count of the tokens so far, and the new message.
    assert talk.arrival == Arrival(7.05, 15, 2, turns=CHAT.turns[1:])


@pytest.mark.parametrize("kind", Endpoint)
async def test_texts_of_a_data_set_are_sent_as_they_are(endpoint, kind: Endpoint) -> None:
    talk = Arrival(0.0, 8, 3, turns=(Turn(0.0, 4, 2, "And then?"),), text="Tell me.")
    assert len(await run(endpoint.url, [talk], kind)) == 2
    last = endpoint.bodies[1]
    if kind is Endpoint.CHAT:
        said = [message["content"] for message in last["messages"]]
        assert said == ["Tell me.", " 1 2 3", "And then?"]
    else:
        assert last["prompt"] == "Tell me. 1 2 3And then?"
        assert "return_token_ids" not in endpoint.bodies[0]


def test_interrupted_request_leaves_no_turn_unsent() -> None:
    stopped = replace(RECORD, failure=Failure.INTERRUPTED)
    assert conversation(Endpoint.CHAT).take(stopped, StreamMeter()).num_unsent == 0


def test_bench_of_conversations_reports_all_turns(endpoint_in_thread, tmp_path) -> None:
    app, path = Typer(), tmp_path / "report.json"
    app.command()(serve)
    given = (
        "--url", endpoint_in_thread.url, "--rate", "200", "--num-requests", "4",
        "--prompt-tokens", "10", "--output-tokens", "2", "--multi-turn", "turns=3,think=0s",
        "--json", str(path),
    )  # fmt: skip
    result = CliRunner(env={"OPENAI_API_KEY": None}).invoke(app, given)
    assert result.exit_code == 0, result.output
    assert "12 requests of 4 conversations that begin over" in result.stderr
    assert "on average 10 tokens in and 2 out, without earlier turns" in result.stderr
    assert "12 sent of 12: 12 succeeded" in result.stdout
    assert "cache hits  50.0% of the prompt tokens" in result.stdout
    [found] = json.loads(path.read_text())["runs"]
    assert [(each["index"], each["turn"]) for each in found["requests"]] == [
        (index, turn) for index in range(4) for turn in range(3)
    ]
    assert [each["num_prompt_tokens"] for each in found["requests"][:3]] == [10, 22, 34]
