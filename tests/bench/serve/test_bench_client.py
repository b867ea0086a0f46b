"""The client against a real server that answers well, late, wrongly or not at all."""

import asyncio
import socket

import pytest
from aiohttp import web
from support.slo_classes import BATCH

from macroserve.bench.serve import client as client_module
from macroserve.bench.serve.client import EndpointError, LoadClient, Target
from macroserve.bench.serve.payload import Endpoint, PayloadMaker
from macroserve.bench.serve.record import Failure, RequestRecord
from macroserve.bench.serve.stream import StreamMeter
from macroserve.workload.arrivals import Arrival

KEY = "sk-very-secret"
PATIENCE_S = 20.0


def at_once(num_requests: int, num_output_tokens: int = 3) -> list[Arrival]:
    return [Arrival(0.0, 8, num_output_tokens) for _ in range(num_requests)]


async def run(
    url: str,
    plan: list[Arrival],
    *,
    stop: asyncio.Event | None = None,
    kind: Endpoint = Endpoint.COMPLETIONS,
    timeout_s: float = PATIENCE_S,
    api_key: str | None = None,
) -> list[RequestRecord]:
    payloads = PayloadMaker("tiny", kind, 100, (0,))
    done: list[RequestRecord] = []
    sent: list[None] = []
    async with (
        asyncio.timeout(PATIENCE_S),
        LoadClient(Target(url, timeout_s, api_key)) as client,
    ):
        records = await client.run(
            plan, payloads, stop or asyncio.Event(), lambda: sent.append(None), done.append
        )
    assert len(sent) == len(records)
    assert sorted(done, key=lambda r: r.index) == records
    return records


def unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize("kind", Endpoint)
async def test_client_records_an_answer(endpoint, kind: Endpoint) -> None:
    [record] = await run(endpoint.url, [Arrival(0.0, 50, 4)], kind=kind, api_key=KEY)
    assert record.failure is None
    assert (record.http_status, record.x_request_id) == (200, "served-7")
    assert (record.num_prompt_tokens, record.num_planned_tokens, record.num_tokens) == (50, 4, 4)
    assert record.num_cached_tokens == 25
    assert record.ttft_s is not None and record.e2e_s is not None
    assert 0 < record.ttft_s <= record.e2e_s <= record.ended_s - record.sent_s
    assert len(record.gaps_s) == 3
    assert sum(record.gaps_s) == pytest.approx(record.e2e_s - record.ttft_s, abs=1e-6)
    [body] = endpoint.bodies
    assert (body["max_tokens"], body["stream"], body["model"]) == (4, True, "tiny")
    assert ("messages" in body) == (kind is Endpoint.CHAT)
    assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert endpoint.headers[0]["Content-Type"] == "application/json"


async def test_client_without_a_key_sends_no_authorization(endpoint) -> None:
    await run(endpoint.url, at_once(1))
    assert "Authorization" not in endpoint.headers[0]


async def test_request_of_a_class_names_it_in_its_head(endpoint) -> None:
    plan = [Arrival(0.0, 8, 3), Arrival(0.0, 8, 3, slo_class=BATCH)]
    records = await run(endpoint.url, plan)
    assert [record.slo_class for record in records] == [None, BATCH]
    assert sorted(headers.get("X-SLO-Class", "") for headers in endpoint.headers) == ["", "batch"]


async def test_record_times_are_those_of_the_chunks(endpoint, monkeypatch) -> None:
    """The endpoint sends each token after the previous one has been read, on a shared clock."""
    loop = asyncio.get_running_loop()
    written_s: list[float] = []
    read_s: list[float] = []
    has_read = asyncio.Event()

    class SignallingMeter(StreamMeter):
        def feed(self, data: bytes, now: float) -> None:
            super().feed(data, now)
            read_s.append(now)
            has_read.set()

    async def token_by_token(request: web.Request, body: dict) -> web.StreamResponse:
        written_s.append(loop.time())
        response = await endpoint.open_stream(request)
        for data in endpoint.events(8, 3):
            await response.write(data)
            await has_read.wait()
            has_read.clear()
            written_s.append(loop.time())
        return response

    monkeypatch.setattr(client_module, "StreamMeter", SignallingMeter)
    endpoint.answer = token_by_token
    start = loop.time()
    [record] = await run(endpoint.url, at_once(1))
    assert read_s == sorted(read_s)
    for before, moment, after in zip(written_s, read_s, written_s[1:], strict=False):
        assert before <= moment <= after
    asked_s, first_s, second_s, third_s = written_s[0], *read_s[:3]
    assert record.ttft_s is not None and record.e2e_s is not None
    assert first_s - asked_s <= record.ttft_s <= first_s - start
    assert record.e2e_s - record.ttft_s == pytest.approx(third_s - first_s)
    assert list(record.gaps_s) == pytest.approx([second_s - first_s, third_s - second_s])
    assert record.ended_s - record.sent_s > record.e2e_s


async def test_client_sends_arrivals_without_waiting_for_answers(endpoint) -> None:
    """The endpoint answers only after all requests have arrived."""
    everyone_asked = asyncio.Event()

    async def together(request: web.Request, body: dict) -> web.StreamResponse:
        if len(endpoint.bodies) == 200:
            everyone_asked.set()
        await everyone_asked.wait()
        return await endpoint.answer_fully(request, body)

    endpoint.answer = together
    records = await run(endpoint.url, at_once(200))
    assert [record.index for record in records] == list(range(200))
    assert {record.failure for record in records} == {None}


async def test_client_sends_requests_on_schedule(endpoint) -> None:
    plan = [Arrival(i * 0.01, 8, 1) for i in range(10)]
    records = await run(endpoint.url, plan)
    assert [record.scheduled_s for record in records] == [r.at_s for r in plan]
    for record in records:
        # Asyncio may wake a timer early by the resolution of its clock.
        assert record.send_lag_s > -0.001
    assert min(record.send_lag_s for record in records) < 0.01


async def test_client_reads_events_cut_into_single_bytes(endpoint) -> None:
    async def byte_by_byte(request: web.Request, body: dict) -> web.StreamResponse:
        response = await endpoint.open_stream(request)
        for byte in b": hello\r\n\r\n" + b"".join(endpoint.events(8, 3)):
            await response.write(bytes([byte]))
        return response

    endpoint.answer = byte_by_byte
    [record] = await run(endpoint.url, at_once(1))
    assert (record.failure, record.num_tokens, len(record.gaps_s)) == (None, 3, 2)


async def test_last_token_without_text_is_counted(endpoint) -> None:
    async def end_silently(request: web.Request, body: dict) -> web.StreamResponse:
        response = await endpoint.open_stream(request)
        first, _, *ending = endpoint.events(8, 2)
        last = endpoint.event({"choices": [{"text": "", "finish_reason": "length"}]})
        for data in (first, last, *ending):
            await response.write(data)
        return response

    endpoint.answer = end_silently
    [record] = await run(endpoint.url, at_once(1, 2))
    assert (record.failure, record.num_tokens, len(record.gaps_s)) == (None, 2, 1)


async def server_error(endpoint, request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": f"bad day, {KEY}"}}, status=500)


async def too_many(endpoint, request: web.Request) -> web.StreamResponse:
    return web.Response(text="slow down", status=429)


async def redirect(endpoint, request: web.Request) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": "/v1/completions"})


async def reset(endpoint, request: web.Request) -> web.StreamResponse:
    response = await endpoint.open_stream(request)
    await response.write(endpoint.events(8, 3)[0])
    assert request.transport is not None
    request.transport.abort()
    return response


async def close_before_answering(endpoint, request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def half_close(endpoint, request: web.Request) -> web.StreamResponse:
    """Ends its side of a body whose end is that of the connection, in mid-answer."""
    assert request.transport is not None
    first = endpoint.events(8, 3)[0]
    request.transport.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + first)
    request.transport.write_eof()
    await asyncio.Event().wait()
    raise AssertionError


async def end_in_mid_answer(endpoint, request: web.Request) -> web.StreamResponse:
    response = await endpoint.open_stream(request)
    await response.write(endpoint.events(8, 3)[0])
    return response


async def end_without_tokens(endpoint, request: web.Request) -> web.StreamResponse:
    response = await endpoint.open_stream(request)
    await response.write(endpoint.event("[DONE]"))
    return response


async def report_error(endpoint, request: web.Request) -> web.StreamResponse:
    response = await endpoint.open_stream(request)
    await response.write(endpoint.events(8, 3)[0])
    await response.write(endpoint.event({"error": {"message": "engine died"}}))
    return response


async def babble(endpoint, request: web.Request) -> web.StreamResponse:
    response = await endpoint.open_stream(request)
    await response.write(endpoint.event("<html>"))
    return response


async def no_stream(endpoint, request: web.Request) -> web.StreamResponse:
    return web.json_response({"choices": [{"text": "all at once"}]})


async def speak_no_http(endpoint, request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.write(b"220 smtp.example ESMTP\r\n\r\n")
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize(
    ("behave", "failure", "status", "detail", "has_ttft"),
    [
        (server_error, Failure.HTTP, 500, "bad day, ***", False),
        (too_many, Failure.HTTP, 429, "slow down", False),
        (redirect, Failure.HTTP, 307, "", False),
        (reset, Failure.DISCONNECT, 200, "", True),
        (close_before_answering, Failure.DISCONNECT, None, "", False),
        (half_close, Failure.TRUNCATED, 200, "it ended after 1 tokens", True),
        (end_in_mid_answer, Failure.TRUNCATED, 200, "it ended after 1 tokens", True),
        (end_without_tokens, Failure.TRUNCATED, 200, "it ended after 0 tokens", False),
        (report_error, Failure.STREAM, 200, "engine died", True),
        (babble, Failure.MALFORMED, 200, "", False),
        (no_stream, Failure.TRUNCATED, 200, "", False),
        (speak_no_http, Failure.MALFORMED, None, "", False),
    ],
)
async def test_client_failures_have_their_own_kinds(
    endpoint, behave, failure: Failure, status: int | None, detail: str, has_ttft: bool
) -> None:
    async def fail_then_answer(request: web.Request, body: dict) -> web.StreamResponse:
        if len(endpoint.bodies) == 1:
            return await behave(endpoint, request)
        return await endpoint.answer_fully(request, body)

    endpoint.answer = fail_then_answer
    plan = [Arrival(0.0, 8, 3), Arrival(0.05, 8, 3)]
    failed, following = await run(endpoint.url, plan, api_key=KEY)
    assert (failed.failure, failed.http_status) == (failure, status)
    assert detail in failed.detail
    assert (failed.ttft_s is not None) == has_ttft
    assert KEY not in failed.detail
    assert following.failure is None


async def test_connection_that_breaks_after_the_answer_is_no_failure(endpoint) -> None:
    async def answer_and_break(request: web.Request, body: dict) -> web.StreamResponse:
        response = await endpoint.open_stream(request)
        for data in endpoint.events(8, 3):
            await response.write(data)
        assert request.transport is not None
        request.transport.close()
        return response

    endpoint.answer = answer_and_break
    [record] = await run(endpoint.url, at_once(1))
    assert (record.failure, record.num_tokens, record.detail) == (None, 3, "")


async def test_slow_answer_ends_with_the_timeout(endpoint) -> None:
    async def stall(request: web.Request, body: dict) -> web.StreamResponse:
        response = await endpoint.open_stream(request)
        await response.write(endpoint.events(8, 3)[0])
        await asyncio.Event().wait()
        return response

    endpoint.answer = stall
    [record] = await run(endpoint.url, at_once(1), timeout_s=0.3)
    assert (record.failure, record.http_status) == (Failure.TIMEOUT, 200)
    assert record.detail
    assert record.ttft_s is not None
    assert record.ended_s < 2


async def test_closed_port_is_recorded_as_no_connection() -> None:
    [record] = await run(f"http://127.0.0.1:{unused_port()}", at_once(1))
    assert (record.failure, record.http_status) == (Failure.CONNECT, None)
    assert record.ended_s >= record.sent_s


async def test_stopped_run_keeps_its_records(endpoint) -> None:
    stop = asyncio.Event()

    async def second_stops(request: web.Request, body: dict) -> web.StreamResponse:
        if len(endpoint.bodies) == 2:
            stop.set()
            await asyncio.Event().wait()
        return await endpoint.answer_fully(request, body)

    endpoint.answer = second_stops
    plan = [Arrival(t, 8, 3) for t in (0.0, 0.1, 3600.0)]
    finished, interrupted = await run(endpoint.url, plan, stop=stop)
    assert finished.failure is None
    assert interrupted.failure is Failure.INTERRUPTED
    assert len(endpoint.bodies) == 2


async def find_model(url: str, wanted: str | None = None, api_key: str | None = None) -> str:
    async with LoadClient(Target(url, 5.0, api_key)) as client:
        return await client.find_model(wanted)


async def test_model_is_the_first_listed_unless_one_is_named(endpoint) -> None:
    assert await find_model(endpoint.url, api_key=KEY) == "tiny"
    assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert await find_model(endpoint.url, "big") == "big"


@pytest.mark.parametrize(
    ("response", "sentence"),
    [
        ({"status": 404}, r"lists no model \(HTTP 404\): name one with --model"),
        ({"text": '{"data": []}'}, "lists no model"),
        ({"text": "hello"}, "lists no model"),
        ({"status": 401}, r"refuses the API key \(HTTP 401\)"),
    ],
)
async def test_endpoint_without_models_is_refused(endpoint, response: dict, sentence: str) -> None:
    endpoint.models = lambda: web.Response(**response)
    with pytest.raises(EndpointError, match=sentence):
        await find_model(endpoint.url)


async def test_named_model_needs_no_list(endpoint) -> None:
    endpoint.models = lambda: web.Response(status=404)
    assert await find_model(endpoint.url, "big") == "big"


@pytest.mark.parametrize("wanted", [None, "big"])
async def test_unreachable_endpoint_is_refused(wanted: str | None) -> None:
    with pytest.raises(EndpointError, match=r"cannot reach http://127\.0\.0\.1"):
        await find_model(f"http://127.0.0.1:{unused_port()}", wanted)
