"""``macroserve up`` waits until its endpoint is ready, and prints a command for it."""

import json
import shlex
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from macroserve.local import first_request as module
from macroserve.local.first_request import first_request, until_ready
from macroserve.serving.ingress.api_keys import ApiKeySource

KEYS = ApiKeySource(keys=("right",))


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@asynccontextmanager
async def serving(route: web.RouteDef) -> AsyncIterator[str]:
    """Serve the route on a free port; yield the URL."""
    app = web.Application()
    app.add_routes([route])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def printed(
    has_template: bool, model: str = "m", api_keys: ApiKeySource | None = None
) -> tuple[list[str], dict[str, object]]:
    """Return the words of the printed command, and its body."""

    async def tokenize(request: web.Request) -> web.Response:
        if api_keys and request.headers.get("Authorization") != "Bearer right":
            raise web.HTTPUnauthorized
        assert (await request.json())["messages"]
        return web.json_response({}, status=200 if has_template else 400)

    async with serving(web.post("/tokenize", tokenize)) as endpoint:
        command = await first_request(endpoint, model, api_keys)
    words = shlex.split(command.replace("\\\n", ""))
    return words, json.loads(words[words.index("-d") + 1])


async def test_endpoint_is_awaited_until_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READY_POLL_S", 0.0)
    statuses = [503, 503, 200]

    async def ready(request: web.Request) -> web.Response:
        return web.Response(status=statuses.pop(0))

    async with serving(web.get("/ready", ready)) as endpoint:
        await until_ready(endpoint)
    assert statuses == []


@pytest.mark.parametrize("api_keys", [None, KEYS])
async def test_model_with_a_chat_template_gets_a_chat(api_keys: ApiKeySource | None) -> None:
    words, body = await printed(True, api_keys=api_keys)
    assert words[2].endswith("/v1/chat/completions") and "messages" in body
    assert ("Authorization: Bearer $KEY" in words) == (api_keys is not None)
    assert "right" not in str(words)


@pytest.mark.parametrize("api_keys", [None, KEYS])
async def test_model_without_a_chat_template_gets_a_completion(
    api_keys: ApiKeySource | None,
) -> None:
    words, body = await printed(False, api_keys=api_keys)
    assert words[2].endswith("/v1/completions") and body["prompt"] == "Hello"


async def test_endpoint_that_does_not_answer_gets_a_chat() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        command = await first_request(f"http://127.0.0.1:{closed.getsockname()[1]}", "m", None)
    assert "/v1/chat/completions" in command


async def test_name_of_a_model_may_hold_quotes() -> None:
    assert (await printed(True, model='it\'s "big"'))[1]["model"] == 'it\'s "big"'


@pytest.mark.parametrize(
    ("variables", "passes_by"),
    [
        ({}, False),
        ({"http_proxy": "http://proxy:1"}, True),
        ({"ALL_PROXY": "http://proxy:1"}, True),
        ({"http_proxy": "http://proxy:1", "no_proxy": "127.0.0.1"}, False),
    ],
)
async def test_command_passes_by_a_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], passes_by: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    words, _ = await printed(True)
    assert ("--noproxy" in words) == passes_by
