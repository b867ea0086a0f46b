"""The command that ``macroserve up`` prints."""

import json
import shlex
import socket

import pytest
from aiohttp import web

from macroserve.local.first_request import first_request
from macroserve.serving.ingress.api_keys import ApiKeySource

KEYS = ApiKeySource(keys=("right",))


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


async def printed(
    has_template: bool, model: str = "m", api_keys: ApiKeySource | None = None
) -> tuple[list[str], dict[str, object]]:
    """The words of the command and its body, for an endpoint of its own."""

    async def tokenize(request: web.Request) -> web.Response:
        if api_keys and request.headers.get("Authorization") != "Bearer right":
            raise web.HTTPUnauthorized
        assert (await request.json())["messages"]
        return web.json_response({}, status=200 if has_template else 400)

    app = web.Application()
    app.add_routes([web.post("/tokenize", tokenize)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
        command = await first_request(endpoint, model, api_keys)
    finally:
        await runner.cleanup()
    words = shlex.split(command.replace("\\\n", ""))
    return words, json.loads(words[words.index("-d") + 1])


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
