"""Requests and choices between an ingress and an instance, in tokens (see ``token_frames`` for how
they travel)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

STOPPED_PATH = "/macroserve/stopped"


@dataclass(frozen=True, slots=True)
class StopStringMet:
    """Message of a cancellation: the stream's text has met a stop string."""

    num_tokens: int
    """Tokens of the whole stream; the last of them completed the stop string."""


def stop_string_met(end: BaseException) -> StopStringMet | None:
    """Return the message if a stop string ended the stream, else None."""
    return next((arg for arg in end.args if isinstance(arg, StopStringMet)), None)


class Stopped(msgspec.Struct, frozen=True):
    """Body of ``POST STOPPED_PATH``, which ends a request whose text has met a stop string."""

    request_id: str
    """The id in the request's own body."""
    num_tokens: int
    """Generated tokens that are part of the answer; later ones are not."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A request for one sequence."""

    request_id: str
    token_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: dict[str, Any]
    """vLLM's ``SamplingParams`` as JSON values."""
    options: dict[str, Any]
    """Further fields of the body (``cache_salt``, ``reasoning_ended``, ...); of them ``features``,
    the images, are bytes, which an instance that takes no images refuses."""
    restartable: bool
    """Whether generation may continue on another instance with the tokens so far as part of the
    prompt (not under a grammar, whose state would be lost)."""
    adapter: str | None = None
    """Name of the LoRA adapter; None for the model alone."""
    session: str | None = None
    """Session that the client names; None for none."""
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
    """Logprobs of a prompt, with a row for each token but the first: that token, then the likeliest
    ones. All numbers are little-endian and of four bytes."""

    token_ids: bytes
    """Integers."""
    logprobs: bytes
    """Floats."""
    ranks: bytes
    """Integers, one a row: the rank of the prompt's token."""


class Choice(msgspec.Struct, frozen=True):
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: Logprobs | None = None
    num_cached: int = 0
    """With the first tokens: prompt tokens that the prefix cache had."""
    prompt_logprobs: PromptLogprobs | None = None
    """With the first tokens, where they were asked for."""


Put = Callable[[Choice], None]
"""Consumer of one stream's choices, called as they come: a task per stream, woken by each of its
tokens, would double the CPU time of a token."""


class TokenStreamer(Protocol):
    """Source of a request's tokens; the ingress's dispatcher implements it."""

    async def stream(self, request: TokenRequest, put: Put) -> None:
        """Stream the tokens of a request until its last choice, which has a finish reason.

        Raises RefusedError if the request ends without one.
        """
        ...


class TokenReader(Protocol):
    """Consumer of one request's tokens in an instance."""

    def put(self, choice: Choice) -> None:
        """Take a choice. None comes after one with a finish reason."""
        ...

    def fail(self, message: str) -> None:
        """End the request as failed."""
        ...


class RefusedError(Exception):
    """The request ends without an answer; ``status`` is the HTTP status for its client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = int(status)  # logs print an HTTPStatus by its name
        self.message = message
