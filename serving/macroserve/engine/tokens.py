"""An ingress sends tokens to an instance and receives tokens.

The instance speaks vLLM's ``POST /inference/v1/generate``: a JSON body in, server-sent events out,
one ``TokenChunk`` each. This module is the client's half, without vLLM.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from macroserve.api.sse import SseParser

GENERATE_PATH = "/inference/v1/generate"
STOPPED_PATH = "/macroserve/stopped"


@dataclass(frozen=True, slots=True)
class StopStringMet:
    """The message of a cancellation ends a stream because its text has met a stop string."""

    num_tokens: int
    """Tokens of the whole stream; the last of them completed the stop string."""


def stop_string_met(end: BaseException) -> StopStringMet | None:
    """Return the message if a stop string ended the stream, else None."""
    return next((arg for arg in end.args if isinstance(arg, StopStringMet)), None)


class Stopped(msgspec.Struct, frozen=True):
    """The body of ``POST STOPPED_PATH`` ends a request whose text has met a stop string."""

    request_id: str
    """The id in the request's own body."""
    num_tokens: int
    """Generated tokens that are part of the answer; later ones are not."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """An ingress asks for one sequence."""

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
    """The logprobs have a row for each token of a prompt but the first: that token, then the
    likeliest ones. All numbers are little-endian and of four bytes."""

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


class StreamError(msgspec.Struct, frozen=True):
    message: str = ""
    code: int = 500


class TokenChunk(msgspec.Struct, frozen=True):
    """A token chunk is one event of the stream, with at most one choice, since every request has
    ``n`` = 1."""

    choices: tuple[Choice, ...] = ()
    error: StreamError | None = None


_chunk_decoder = msgspec.json.Decoder(TokenChunk)
_DONE = b"[DONE]"


class EventParser:
    """An event parser turns the bytes of a stream, cut anywhere, into token chunks."""

    def __init__(self) -> None:
        self._sse = SseParser()

    def feed(self, data: bytes) -> Iterable[TokenChunk]:
        """Yield the events that end in ``data``; raise msgspec.DecodeError on malformed ones."""
        for payload in self._sse.feed(data):
            if payload != _DONE:
                yield _chunk_decoder.decode(payload)


Put = Callable[[Choice], None]
"""A function takes the choices of one stream as they come: a task for each stream, woken by each of
its tokens, would cost as much CPU as all else that a token meets."""


class TokenStreamer(Protocol):
    """A streamer turns a ``TokenRequest`` into tokens; the ingress's dispatcher implements it."""

    async def stream(self, request: TokenRequest, put: Put) -> None:
        """Stream the tokens of a request until its end, which the last choice tells.

        Raises ``RefusedError`` where no such choice comes.
        """
        ...


class TokenReader(Protocol):
    """A reader takes the tokens of one request in an instance."""

    def put(self, choice: Choice) -> None:
        """Take a choice. None comes after one with a finish reason."""
        ...

    def fail(self, message: str) -> None:
        """End the request, which has failed."""
        ...


class RefusedError(Exception):
    """The request ends without an answer; ``status`` is the HTTP status that tells why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = int(status)  # logs print an HTTPStatus by its name
        self.message = message
