"""The chunks of streamed responses have the JSON of vLLM's models."""

from typing import Any

import msgspec
import pytest

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.entrypoints.openai.chat_completion import protocol as chat  # noqa: E402
from vllm.entrypoints.openai.chat_completion import serving as chat_serving  # noqa: E402
from vllm.entrypoints.openai.completion import protocol as completion  # noqa: E402
from vllm.entrypoints.openai.completion import serving as completion_serving  # noqa: E402
from vllm.entrypoints.serve.engine.protocol import UsageInfo  # noqa: E402

from macroserve.engine.vllm.chunks import install, unchecked  # noqa: E402

pytestmark = pytest.mark.integration

HEAD = {"created": 7, "model": "tiny", "id": "cmpl-1", "object": "text_completion"}
CHOICE = {"finish_reason": None, "index": 0, "text": "Hi", "logprobs": None}
LOGPROBS = completion.CompletionLogProbs(
    text_offset=[0], token_logprobs=[-1.25e-05], tokens=["Hi"], top_logprobs=[{"Hi": -9999.0}]
)
TEXT = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x11000), 0x1F600]))


@pytest.mark.parametrize(
    "choice",
    [
        CHOICE,
        {"index": 1, "text": TEXT},
        {**CHOICE, "logprobs": LOGPROBS, "prompt_token_ids": [1, 2], "token_ids": [3]},
        {**CHOICE, "finish_reason": "stop", "stop_reason": "\n"},
        {**CHOICE, "finish_reason": "stop", "stop_reason": 2},
    ],
)
@pytest.mark.parametrize(
    "later", [{}, {"system_fingerprint": "vllm"}, {"usage": UsageInfo(prompt_tokens=3)}]
)
def test_completion_chunk_has_the_json_of_vllms_model(
    choice: dict[str, Any], later: dict[str, Any]
) -> None:
    def written(response: Any, part: Any) -> str:
        chunk = response(**HEAD, choices=[part(**choice)])
        for name, value in later.items():
            setattr(chunk, name, value)
        return chunk.model_dump_json(exclude_unset=True)

    model, part = completion.CompletionStreamResponse, completion.CompletionResponseStreamChoice
    assert written(unchecked(model), unchecked(part)) == written(model, part)


def test_last_chunk_of_usage_has_the_defaults_and_no_nulls_of_vllms_model() -> None:
    fields = {"id": "cmpl-1", "created": 7, "model": "tiny", "choices": []}
    fields |= {"usage": UsageInfo(prompt_tokens=3, total_tokens=3), "metrics": None}
    model = completion.CompletionStreamResponse
    ours, vllms = (
        made(**fields).model_dump_json(exclude_unset=False, exclude_none=True)
        for made in (unchecked(model), model)
    )
    assert ours == vllms
    assert '"object"' in ours
    assert "metrics" not in ours


def test_chat_chunk_has_the_json_of_vllms_model() -> None:
    calls = [{"index": 0, "function": {"name": "add", "arguments": ""}}]
    choices = [
        chat.ChatCompletionResponseStreamChoice(index=0, delta={"role": "assistant", **delta})
        for delta in ({"content": "Hi"}, {"tool_calls": calls}, {"content": None, "tool_calls": []})
    ]
    fields = {**HEAD, "object": "chat.completion.chunk", "choices": choices}
    model = chat.ChatCompletionStreamResponse
    ours, vllms = (
        made(**fields).model_dump_json(exclude_unset=True) for made in (unchecked(model), model)
    )
    assert ours == vllms


def test_installed_chunks_are_those_that_vllm_streams() -> None:
    install()
    for made in (
        getattr(completion_serving, "CompletionStreamResponse"),  # noqa: B009
        getattr(completion_serving, "CompletionResponseStreamChoice"),  # noqa: B009
        getattr(chat_serving, "ChatCompletionStreamResponse"),  # noqa: B009
    ):
        assert issubclass(made, msgspec.Struct)
