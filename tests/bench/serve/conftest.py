"""A scripted OpenAI endpoint on 127.0.0.1."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

Answer = Callable[[web.Request, dict], Awaitable[web.StreamResponse]]


class ScriptedEndpoint:
    """``answer`` is what it does with a request; ``bodies`` and ``headers`` are of those so far."""

    def __init__(self) -> None:
        self.url = ""
        self.answer: Answer = self.answer_fully
        self.models: Callable[[], web.Response] = lambda: web.json_response(
            {"object": "list", "data": [{"id": "tiny", "object": "model"}]}
        )
        self.bodies: list[dict] = []
        self.headers: list[dict[str, str]] = []
        app = web.Application(client_max_size=2**24)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        self.server = TestServer(app)

    async def start(self) -> None:
        await self.server.start_server()
        self.url = f"http://127.0.0.1:{self.server.port}"

    @staticmethod
    def event(payload: dict | str) -> bytes:
        text = payload if isinstance(payload, str) else json.dumps(payload)
        return f"data: {text}\n\n".encode()

    @classmethod
    def events(cls, num_prompt: int, num_output: int, with_ids: bool = False) -> list[bytes]:
        """Return the events of a whole response: one per token, whose id is 1000 and its number,
        then the usage, then the end mark."""
        choices = [
            {"text": f" {i}", "finish_reason": "length" if i == num_output else None}
            | ({"token_ids": [1000 + i]} if with_ids else {})
            for i in range(1, num_output + 1)
        ]
        tokens = [{"choices": [choice]} for choice in choices]
        usage = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "prompt_tokens_details": {"cached_tokens": num_prompt // 2},
        }
        return [cls.event(e) for e in (*tokens, {"choices": [], "usage": usage}, "[DONE]")]

    @staticmethod
    async def open_stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "X-Request-Id": "served-7"}
        )
        await response.prepare(request)
        return response

    async def answer_fully(self, request: web.Request, body: dict) -> web.StreamResponse:
        response = await self.open_stream(request)
        said = [message["content"] for message in body.get("messages", ())]
        prompt = body["prompt"] if "prompt" in body else " ".join(said).split()
        with_ids = body.get("return_token_ids", False)
        for data in self.events(len(prompt), body["max_tokens"], with_ids):
            await response.write(data)
        return response

    async def _list_models(self, request: web.Request) -> web.Response:
        self.headers.append(dict(request.headers))
        return self.models()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        return await self.answer(request, body)


@pytest.fixture
async def endpoint() -> AsyncIterator[ScriptedEndpoint]:
    """Return an endpoint that runs in the event loop of the test."""
    scripted = ScriptedEndpoint()
    await scripted.start()
    yield scripted
    await scripted.server.close()


@pytest.fixture
def endpoint_in_thread() -> Iterator[ScriptedEndpoint]:
    """Return an endpoint for code that runs an event loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        scripted = ScriptedEndpoint()
        asyncio.run_coroutine_threadsafe(scripted.start(), loop).result(10)
        yield scripted
        asyncio.run_coroutine_threadsafe(scripted.server.close(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
