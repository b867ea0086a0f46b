"""A real engine offers what ``spec.api`` enables, and vLLM's metrics count it."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.deployment import Up, manifest, running
from support.thinking_model import END_THINK, thinking_model

from macroserve.api.sse import SseParser

pytestmark = pytest.mark.integration

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 9}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FUNCTION = {"name": "add", "parameters": PARAMETERS}
NAMED = {"type": "function", "function": {"name": "add"}}
# The model is random: what it says and thinks ends where this gives the end enough weight.
SAY = {"logit_bias": {"2": 8}}
THINK = {"chat_template_kwargs": {"thinking": True}, "logit_bias": {str(END_THINK): 5}}
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("api")
    document = manifest(
        model={
            "source": str(thinking_model(folder / "model")),
            "servedName": "m",
            "maxModelLen": 1024,
        },
        engine={
            "type": "vLLM",
            "dtype": "float32",
            "kvCacheMemory": "64MiB",
            "maxBatchTokens": 512,
        },
        instances=1,
        mitosis={"lowerBound": 1, "upperBound": 2},
        api={
            "toolCallParser": "hermes",
            # Arguments keep to the tool's schema, also where a request does not ask for that.
            "toolStrictLevel": "parameter",
            # The one of those that look for <think> which a request can turn off.
            "reasoningParser": "deepseek_v3",
            "chatTemplate": TEMPLATE,
        },
    )
    with running(folder, document) as deployment:
        yield deployment


def asked(up: Up, path: str, **body: Any) -> str:
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    body = {"model": "m", "temperature": 0, "ignore_eos": True, limit: 60, **body}
    answer = httpx.post(up.endpoint + path, json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.text


def events(text: str) -> list[dict[str, Any]]:
    payloads = SseParser().feed(text.encode())
    return [json.loads(payload) for payload in payloads if payload.startswith(b"{")]


def test_grammar_without_a_way_on_ends_with_400_and_harms_no_other(up: Up) -> None:
    """The grammar allows some first tokens, after which no token is valid."""
    outputs = {"grammar": 'root ::= "ab" rest\nrest ::= rest'}
    body = {"model": "m", "prompt": "Hi", "max_tokens": 200, "structured_outputs": outputs}
    answer = httpx.post(up.endpoint + "/v1/completions", json=body, timeout=120)
    assert answer.status_code == 400, answer.text
    assert "allows no next token" in answer.text
    assert asked(up, "/v1/completions", prompt="Hi", max_tokens=3)
    assert " ended: " not in up.log


# -- stop strings

COUNTED = (
    'vllm:request_success_total{.*"stop"',
    "vllm:request_success_total",
    "vllm:e2e_request_latency_seconds_count",
    "vllm:request_prompt_tokens_count",
    "vllm:request_generation_tokens_count",
    "vllm:request_generation_tokens_sum",
    'macroserve_requests_total{.*"ok"',
)


def counted(up: Up) -> list[float]:
    page = httpx.get(up.state.private + "/metrics", timeout=10).text
    found = [re.findall(rf"^{name}.* (\S+)$", page, re.MULTILINE) for name in COUNTED]
    return [sum(map(float, values)) for values in found]


PROMPT = {"prompt": "Hello"}
CHAT = {"messages": MESSAGES}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "field", "requests"),
    [
        ("/v1/completions", PROMPT, "stop", 1),
        ("/v1/completions", {"prompt": ["Hello", "Hello"]}, "stop", 2),
        # vLLM refuses several greedy choices.
        ("/v1/completions", {**PROMPT, "n": 2, "temperature": 1, "top_k": 1}, "stop", 2),
        ("/v1/chat/completions", CHAT, "stop", 1),
        ("/v1/responses", {"input": MESSAGES}, "stop", 1),
        ("/v1/messages", CHAT, "stop_sequences", 1),
    ],
)
def test_requests_that_end_by_a_stop_string_count_as_in_stock_vllm(
    up: Up, path: str, body: dict[str, Any], field: str, requests: int, stream: bool
) -> None:
    whole = json.loads(
        asked(up, "/v1/completions", prompt="Hello")
        if path == "/v1/completions"
        else asked(up, "/v1/chat/completions", messages=MESSAGES)
    )["choices"][0]
    text: str = whole["text"] if "text" in whole else whole["message"]["content"]
    stop = text[40:52]  # over several tokens
    before = counted(up)
    asked(up, path, **body, **{field: [stop]}, stream=stream)

    def new() -> list[float]:
        return [after - b for after, b in zip(counted(up), before, strict=True)]

    up.wait_for(lambda: new()[-1] == requests, timeout_s=10)
    *counts, num_tokens, ok = new()
    assert counts == [requests] * len(counts) and ok == requests
    # What came after the stop string is no part of the answer.
    assert requests * 5 < num_tokens < requests * 40


def status(up: Up) -> dict[str, Any]:
    (instance,) = up.instances().values()
    return instance["status"]


def test_client_that_leaves_counts_nowhere(up: Up) -> None:
    before, num_iterations = counted(up), status(up)["iterations"]
    body = {"model": "m", **PROMPT, "max_tokens": 900, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", up.endpoint + "/v1/completions", json=body, timeout=30) as answer:
        next(answer.iter_raw())

    def has_left() -> bool:
        found = status(up)
        # A report of before the request has nothing running either.
        return found["iterations"] > num_iterations and found["num_running"] == 0

    up.wait_for(has_left, timeout_s=10)
    assert counted(up) == before


# -- tools and reasoning


def said(text: str) -> dict[str, Any]:
    """The parts of a chat's message, streamed or not."""
    parts: dict[str, Any] = {"reasoning": "", "content": "", "name": "", "arguments": ""}
    for event in events(text) or [json.loads(text)]:
        for choice in event["choices"]:
            message = choice.get("delta") or choice.get("message") or {}
            parts["reasoning"] += message.get("reasoning") or ""
            parts["content"] += message.get("content") or ""
            for call in message.get("tool_calls") or ():
                parts["name"] += call["function"].get("name") or ""
                parts["arguments"] += call["function"].get("arguments") or ""
    return parts


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", [SAY, THINK])
@pytest.mark.parametrize("choice", ["auto", "required", NAMED])
def test_chats_call_tools_after_their_thoughts(
    up: Up, choice: Any, mode: dict[str, Any], stream: bool
) -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": true}}\n</tool_call>'
    # With auto it is the model's choice, which is made for this one.
    forced = {"structured_outputs": {"choice": [call]}} if choice == "auto" else {}
    parts = said(
        asked(
            up,
            "/v1/chat/completions",
            **CHAT,
            tools=[{"type": "function", "function": FUNCTION}],
            tool_choice=choice,
            ignore_eos=False,
            max_tokens=500,
            stream=stream,
            **mode,
            **forced,
        )
    )
    assert bool(parts["reasoning"]) == (mode is THINK)
    assert "think" not in parts["reasoning"] + parts["content"]
    # Required may be several calls.
    assert parts["name"].startswith("add")
    arguments, _ = json.JSONDecoder().raw_decode(parts["arguments"])
    assert arguments.keys() == {"a", "b"} and type(arguments["b"]) is bool


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "choice",
    [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "add"}],
)
def test_messages_call_tools(up: Up, choice: dict[str, Any], stream: bool) -> None:
    tools = [{"name": "add", "input_schema": PARAMETERS}]
    text = asked(
        up,
        "/v1/messages",
        **CHAT,
        tools=tools,
        tool_choice=choice,
        ignore_eos=False,
        max_tokens=300,
        stream=stream,
    )
    if stream:
        deltas = [event.get("delta", {}) for event in events(text)]
        called, _ = json.JSONDecoder().raw_decode(
            "".join(delta.get("partial_json", "") for delta in deltas)
        )
    else:
        called = json.loads(text)["content"][0]["input"]
    assert called.keys() == {"a", "b"}
