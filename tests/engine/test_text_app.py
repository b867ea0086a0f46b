"""The options of spec.api reach the endpoint, which answers with given texts, without an engine."""

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.public_app import shaped

from macroserve.api.messages import RequestInfo
from macroserve.core.request import Slo
from macroserve.engine.settings import EngineSettings
from macroserve.engine.tokens import Choice, Put, TokenRequest, unpack
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.sampling_params import SamplingParams  # noqa: E402

from macroserve.engine.vllm.api import text_app  # noqa: E402
from macroserve.engine.vllm.frontend import RemoteLLM  # noqa: E402
from macroserve.engine.vllm.grammar import GrammarChecks  # noqa: E402
from macroserve.engine.vllm.options import frontend_config  # noqa: E402

pytestmark = pytest.mark.integration

API = {
    "served_model_name": ["tiny", "other"],
    "tool_call_parser": "hermes",
    "enable_auto_tool_choice": True,
    "reasoning_parser": "granite",
    "chat_template": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    "enable_request_id_headers": True,
    "enable_force_include_usage": True,
}
NUM_CACHED = 48
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


class FakeStreamer:
    """The streamer answers every request with the tokens of a text, after its adapter's name."""

    def __init__(self) -> None:
        self.text = "Hello"
        self.encode: Any = None
        self.requests: list[TokenRequest] = []

    def info(self, request_id: str) -> RequestInfo:
        return RequestInfo(route_id=request_id, age_s=0.0, slo=Slo(2.0, 0.1))

    async def stream(self, request: TokenRequest, put: Put) -> None:
        self.requests.append(request)
        tokens = self.encode((request.adapter or "") + self.text)
        put(Choice(tokens[:1], num_cached=NUM_CACHED))
        put(Choice(tokens[1:], "stop"))


class SlowStreamer(FakeStreamer):
    """The streamer waits after each token until the client has it."""

    async def stream(self, request: TokenRequest, put: Put) -> None:
        *tokens, last = self.encode(self.text)
        for token in tokens:
            put(Choice([token]))
            for _ in range(100):
                await asyncio.sleep(0)
        put(Choice([last], "stop"))


class AllAdmitted(GrammarChecks):
    """The checks compile nothing: the given answers follow no grammar."""

    async def admit(self, params: SamplingParams) -> SamplingParams:
        return params


def answers(
    settings: EngineSettings,
    text: str,
    *requests: tuple[str, str, dict],
    streamer: FakeStreamer | None = None,
    stream_interval: int = 1,
) -> list:
    """Return the answers to all of (method, path, arguments of httpx) from a model that says
    ``text``, and then the prompts that it saw."""
    streamer = streamer or FakeStreamer()

    async def run() -> list[httpx.Response]:
        config = frontend_config(settings)
        config.scheduler_config.stream_interval = stream_interval
        llm = RemoteLLM(config, streamer, lambda: None, AllAdmitted(settings))
        tokenizer = llm.renderer.tokenizer
        assert tokenizer is not None
        streamer.text = text
        # The text of the token that ends an answer is not part of it.
        streamer.encode = lambda text: [
            *tokenizer.encode(text, add_special_tokens=False),
            tokenizer.eos_token_id,
        ]
        has_ids = settings.api.get("enable_request_id_headers", False)
        app = shaped(await text_app(llm, settings), has_ids=has_ids)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            found = [await client.request(m, path, **more) for m, path, more in requests]
        seen.extend(tokenizer.decode(unpack(each.token_ids)) for each in streamer.requests)
        return found

    seen: list[str] = []
    return [*asyncio.run(run()), seen]


def chat(**more: Any) -> tuple[str, str, dict]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 99}
    return "POST", "/v1/chat/completions", {"json": body | more}


def test_text_app_with_api_options_applies_all_of_them(settings: EngineSettings) -> None:
    tools, models, other, seen = answers(
        replace(settings, api=API),
        f"Here is my thought process: well Here is my response: {CALL}",
        chat(tools=[TOOL], tool_choice="auto"),
        ("GET", "/v1/models", {}),
        chat(model="other"),
    )
    assert tools.status_code == 200, tools.text
    message = tools.json()["choices"][0]["message"]
    assert message["reasoning"], message
    assert message["reasoning"].strip() == "well"
    assert "tool_calls" in message, message
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["add"]
    assert len(tools.headers["x-request-id"]) == 32
    assert [model["id"] for model in models.json()["data"]] == ["tiny", "other"]
    assert other.status_code == 200
    assert "<user>Hi" in seen[0]


@pytest.mark.parametrize(
    ("headers", "fields", "session"),
    [
        ({}, {}, None),
        ({"X-Session-Id": "one"}, {}, "one"),
        ({}, {"session_id": "two"}, "two"),
        ({"X-Session-Id": "one"}, {"session_id": "two"}, "two"),
        ({}, {"vllm_xargs": {"session_id": "three"}}, "three"),
    ],
)
def test_text_app_passes_on_the_session_that_a_client_names(
    settings: EngineSettings, headers: dict, fields: dict, session: str | None
) -> None:
    streamer = FakeStreamer()
    method, path, more = chat(**fields)
    answer, _ = answers(
        settings, "Hello", (method, path, more | {"headers": headers}), streamer=streamer
    )
    assert answer.status_code == 200, answer.text
    assert [request.session for request in streamer.requests] == [session]


def test_text_app_with_adapters_lists_them_and_answers_by_their_names(
    settings: EngineSettings,
) -> None:
    adapters = {"sql": "org/sql-adapter", "chat": "/adapters/chat"}
    own, sql, other, unknown, models, _ = answers(
        replace(settings, adapters=adapters, api={"served_model_name": ["tiny", "other"]}),
        " says hello",
        chat(),
        chat(model="sql"),
        chat(model="chat", stream=True),
        chat(model="nobody"),
        ("GET", "/v1/models", {}),
    )
    assert (own.json()["model"], sql.json()["model"]) == ("tiny", "sql")
    texts = [answer.json()["choices"][0]["message"]["content"] for answer in (own, sql)]
    assert texts == [" says hello", "sql says hello"]
    assert '"model":"chat"' in other.text
    assert unknown.status_code == 404
    assert unknown.json()["error"]["message"].startswith("The model `nobody` does not exist.")
    listed = [(m["id"], m["parent"], m["root"]) for m in models.json()["data"]]
    assert listed == [
        ("tiny", None, settings.model),
        ("other", None, settings.model),
        ("sql", "tiny", "org/sql-adapter"),
        ("chat", "tiny", "/adapters/chat"),
    ]


def test_usage_tells_the_cached_tokens_of_the_prompt(settings: EngineSettings) -> None:
    text = {"model": "tiny", "prompt": "Hi", "max_tokens": 99}
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    *found, _ = answers(
        replace(settings, api={**API, "enable_prompt_tokens_details": True}),
        "Hello there",
        chat(),
        chat(**streaming),
        ("POST", "/v1/completions", {"json": text}),
        ("POST", "/v1/completions", {"json": text | streaming}),
    )
    for answer in found:
        data = answer.text.rsplit("data: ", 2)[1] if "data: " in answer.text else answer.text
        details = json.loads(data)["usage"]["prompt_tokens_details"]
        assert details["cached_tokens"] == NUM_CACHED


def test_text_app_without_api_options_offers_none(settings: EngineSettings) -> None:
    tools, models, _ = answers(
        settings, CALL, chat(tools=[TOOL], tool_choice="auto"), ("GET", "/v1/models", {})
    )
    assert tools.status_code == 400
    assert [model["id"] for model in models.json()["data"]] == ["tiny"]
    assert "x-request-id" not in models.headers


MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}),
        ("/v1/chat/completions/batch", {"messages": [MESSAGES]}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/responses", {"input": "Hi", "stream": True}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 5}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 5, "stream": True}),
        ("/v1/messages/count_tokens", {"messages": MESSAGES}),
        ("/tokenize", {"messages": MESSAGES}),
    ],
)
def test_text_app_without_a_template_refuses_messages_and_names_the_field(
    settings: EngineSettings, tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    shutil.copytree(settings.model, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    bare = replace(settings, model=str(tmp_path))
    answer, _ = answers(bare, "Hello", ("POST", path, {"json": {"model": "tiny", **body}}))
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert "spec.api.chatTemplate" in message and "transformers" not in message


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_text_app_without_a_tool_parser_refuses_tools_and_names_the_field(
    settings: EngineSettings, choice: str, path: str
) -> None:
    body: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 5}
    if path == "/v1/messages":
        kind = {"required": "any"}.get(choice, choice)
        body |= {"tools": [{"name": "add", "input_schema": {}}], "tool_choice": {"type": kind}}
    else:
        body |= {"tools": [TOOL], "tool_choice": choice}
    answer, _ = answers(settings, CALL, ("POST", path, {"json": body}))
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert "spec.api.toolCallParser" in message and "--" not in message


@pytest.mark.parametrize("interval", [1, 4])
def test_stream_interval_is_the_number_of_tokens_in_an_event(
    settings: EngineSettings, interval: int
) -> None:
    text = "one two three four five six seven eight nine"
    streaming = {"stream": True, "return_token_ids": True}
    response, _ = answers(
        settings, text, chat(**streaming), streamer=SlowStreamer(), stream_interval=interval
    )
    events = [json.loads(line[6:]) for line in response.text.split("\n\n")[:-2]]
    choices = [choice for each in events for choice in each["choices"]]
    assert "".join(each["delta"].get("content") or "" for each in choices) == text
    first, *others, _ = [len(ids) for each in choices if (ids := each.get("token_ids"))]
    assert first == 1 and set(others) == {interval}


@pytest.mark.parametrize("stream", [False, True])
def test_text_app_refusal_inside_a_stream_names_fields(
    settings: EngineSettings, stream: bool
) -> None:
    answer, _ = answers(settings, "Hi", chat(thinking_token_budget=5, stream=stream))
    assert "spec.api.reasoningParser" in answer.text and "--reasoning" not in answer.text


@pytest.mark.parametrize("stream", [False, True])
def test_text_app_of_a_text_model_refuses_an_image(settings: EngineSettings, stream: bool) -> None:
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    messages = [{"role": "user", "content": content}]
    answer, _ = answers(settings, "Hi", chat(messages=messages, stream=stream))
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "tiny is not a multimodal model"


LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
EVERYWHERE = [
    ("/v1/chat/completions", {"messages": MESSAGES}),
    ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}),
    ("/v1/responses", {"input": "Hi"}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 5}),
    ("/tokenize", {"messages": MESSAGES}),
]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].nothing.more }}", "has no attribute 'nothing'"),
        ("{{ messages + 1 }}", "concatenate"),
        ("{{ 1 / 0 }}", "division by zero"),
        (LOOP, "takes longer than 0.2 s"),
    ],
)
def test_template_that_cannot_render_answers_400_and_starts(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch, template: str, said: str
) -> None:
    monkeypatch.setattr("macroserve.engine.vllm.rendering.RENDER_S", 0.2)
    requests = [("POST", path, {"json": {"model": "tiny", **body}}) for path, body in EVERYWHERE]
    *found, _ = answers(replace(settings, api={"chat_template": template}), "Hello", *requests)
    for answer in found:
        assert answer.status_code == 400, answer.text
        assert said in answer.json()["error"]["message"]


def test_render_after_an_interrupted_one_succeeds(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("macroserve.engine.vllm.rendering.RENDER_S", 0.2)
    template = "{% if messages[0].content == 'Loop' %}" + LOOP + "{% endif %}Hi"
    loop = chat(messages=[{"role": "user", "content": "Loop"}])
    *found, _ = answers(
        replace(settings, api={"chat_template": template}), "Hello", *[loop, chat()] * 3
    )
    assert [answer.status_code for answer in found] == [400, 200] * 3
