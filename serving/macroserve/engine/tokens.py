"""Token requests and choices between an ingress and an instance (protocol: ``token_frames``)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

STOPPED_PATH = "/macroserve/stopped"


@dataclass(frozen=True, slots=True)
class StopStringMet:
    """Message of a cancellation: the stream's text has met a stop string."""

    num_tokens: int
    """Tokens of the whole stream up to the one that completed the stop string."""


def stop_string_met(end: BaseException) -> StopStringMet | None:
    """Return the message if a stop string ended the stream, else None."""
    return next((arg for arg in end.args if isinstance(arg, StopStringMet)), None)


class Stopped(msgspec.Struct, frozen=True):
    """Body of ``POST STOPPED_PATH``, which ends a request whose text has met a stop string."""

    request_id: str
    """Id in the request's body."""
    num_tokens: int
    """Generated tokens that are part of the answer."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A request for one sequence."""

    request_id: str
    token_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: dict[str, Any]
    """vLLM's ``SamplingParams`` as JSON values."""
    options: dict[str, Any]
    """Further fields of the body (``cache_salt``, ``reasoning_ended``, ...); ``features``, the
    images, are bytes."""
    restartable: bool
    """Whether generation can continue on another instance with the tokens so far as part of the
    prompt; false with a grammar, whose state would be lost."""
    adapter: str | None = None
    """Name of the LoRA adapter; None for the model itself."""
    session: str | None = None
    """Session name from the client."""
    probe: bool = False
    """See ``core.request.Request``."""


class TopLogprob(msgspec.Struct, frozen=True):
    token_id: int
    logprob: float
    rank: int | None = None


class TokenLogprob(TopLogprob, frozen=True):
    top_logprobs: tuple[TopLogprob, ...] = ()


class Logprobs(msgspec.Struct, frozen=True):
    content: tuple[TokenLogprob, ...] | None = None


class PromptLogprobs(msgspec.Struct, frozen=True):
    """Logprobs of a prompt, with a row for each token except the first: that token, then the
    likeliest ones. All numbers are little-endian and have four bytes."""

    token_ids: bytes
    """Integers."""
    logprobs: bytes
    """Floats."""
    ranks: bytes
    """Integers, one a row: rank of the prompt's token."""


class Choice(msgspec.Struct, frozen=True):
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: Logprobs | None = None
    num_cached: int = 0
    """Prompt tokens found in the prefix cache, with the first tokens."""
    prompt_logprobs: PromptLogprobs | None = None
    """With the first tokens, if requested."""


Put = Callable[[Choice], None]
"""Consumer of one stream's choices; a callback, because a task that each token wakes would double
the CPU time of a token."""


class TokenStreamer(Protocol):
    """Source of a request's tokens, implemented by the ingress's dispatcher."""

    async def stream(self, request: TokenRequest, put: Put) -> None:
        """Stream the tokens of a request until its last choice, which has a finish reason. Raises
        RefusedError if the request ends without one."""
        ...


class TokenReader(Protocol):
    """Consumer of one request's tokens in an instance."""

    def put(self, choice: Choice) -> None:
        """Take a choice; the last one has a finish reason."""
        ...

    def fail(self, message: str) -> None:
        """End the request as failed."""
        ...


class RefusedError(Exception):
    """A request that ends without an answer, with the HTTP ``status`` for its client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = int(status)  # logs print an HTTPStatus by its name
        self.message = message
