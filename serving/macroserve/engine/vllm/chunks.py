"""Chunks of streamed responses without pydantic's validation.

vLLM fills two pydantic models per chunk; their validation and serialization take more CPU time than
a token's text.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET
from pydantic import BaseModel
from vllm.entrypoints.openai.chat_completion import serving as chat
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionStreamResponse
from vllm.entrypoints.openai.completion import serving as completion
from vllm.entrypoints.openai.completion.protocol import (
    CompletionResponseStreamChoice,
    CompletionStreamResponse,
)


def _written(part: BaseModel) -> msgspec.Raw:
    """Return the JSON of a part that is still a pydantic model."""
    return msgspec.Raw(part.model_dump_json(exclude_unset=True).encode())


_encode = msgspec.json.Encoder(enc_hook=_written).encode


def unchecked(model: type[BaseModel]) -> Callable[..., Any]:
    """Return a class with the fields and the JSON of a model, without validation."""

    def model_dump_json(self: msgspec.Struct, *, exclude_unset: bool, **options: Any) -> str:
        data = _encode(self)
        if exclude_unset and not options:
            return data.decode()
        # Only the last chunk of a stream, which has defaults or omits nulls.
        whole = model.model_validate_json(data)
        return whole.model_dump_json(exclude_unset=exclude_unset, **options)

    return msgspec.defstruct(
        model.__name__,
        [(name, Any, UNSET) for name in model.model_fields],
        namespace={"model_dump_json": model_dump_json},
        module=__name__,
        kw_only=True,
    )


def install() -> None:
    """Make vLLM's completions and chats use such chunks, except for the choices of chats, whose
    type vLLM checks."""
    choice = unchecked(CompletionResponseStreamChoice)
    setattr(completion, "CompletionResponseStreamChoice", choice)  # noqa: B010
    setattr(completion, "CompletionStreamResponse", unchecked(CompletionStreamResponse))  # noqa: B010
    setattr(chat, "ChatCompletionStreamResponse", unchecked(ChatCompletionStreamResponse))  # noqa: B010
