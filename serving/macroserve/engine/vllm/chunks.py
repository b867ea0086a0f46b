"""Chunks of a streamed response become JSON without pydantic's checks.

vLLM fills two pydantic models for each chunk. To check what vLLM itself has filled in, and to write
it, costs more CPU than to make a token's text.
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
    """Return the JSON of a part of a chunk that is still a model."""
    return msgspec.Raw(part.model_dump_json(exclude_unset=True).encode())


_encode = msgspec.json.Encoder(enc_hook=_written).encode


def unchecked(model: type[BaseModel]) -> Callable[..., Any]:
    """Return a class that has the fields and the JSON of a model, and checks nothing."""

    def model_dump_json(self: msgspec.Struct, *, exclude_unset: bool, **options: Any) -> str:
        data = _encode(self)
        if exclude_unset and not options:
            return data.decode()
        # The chunk that ends a stream, which has defaults or leaves nulls out.
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
    """Let vLLM's completions and chat stream such chunks. The choices of a chat stay models: vLLM
    asks for their type."""
    choice = unchecked(CompletionResponseStreamChoice)
    setattr(completion, "CompletionResponseStreamChoice", choice)  # noqa: B010
    setattr(completion, "CompletionStreamResponse", unchecked(CompletionStreamResponse))  # noqa: B010
    setattr(chat, "ChatCompletionStreamResponse", unchecked(ChatCompletionStreamResponse))  # noqa: B010
