"""Tokens in, tokens out: what travels between an ingress and an instance.

The instance speaks vLLM's ``POST /inference/v1/generate``: a JSON body in, server-sent events out,
one ``TokenChunk`` each. This module is the client's half, without vLLM.
"""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

GENERATE_PATH = "/inference/v1/generate"
STOPPED_PATH = "/macroserve/stopped"


@dataclass(frozen=True, slots=True)
class StopStringMet:
    """Message of the cancellation that ends a stream because its text has met a stop string.

    num_tokens: of the whole stream, the last of them completed the stop string.
    """

    num_tokens: int


def stop_string_met(end: BaseException) -> StopStringMet | None:
    """The message, when that is what ended a stream."""
    return next((arg for arg in end.args if isinstance(arg, StopStringMet)), None)


class Stopped(msgspec.Struct, frozen=True):
    """Body of ``POST STOPPED_PATH``: the text of a request has met a stop string, which ends it.

    request_id: as in the request's own body. num_tokens: that the instance has generated for the
    answer; those that it has generated since are not part of it.
    """

    request_id: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """One sequence to generate.

    sampling: vLLM's ``SamplingParams`` as JSON values. options: further fields of the body
    (``cache_salt``, ``reasoning_ended``, ...). restartable: whether generation may go on elsewhere
    with the tokens so far as part of the prompt (not under a grammar, whose state would be lost).
    """

    request_id: str
    token_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: dict[str, Any]
    options: dict[str, Any]
    restartable: bool


class TopLogprob(msgspec.Struct, frozen=True):
    token_id: int
    logprob: float
    rank: int | None = None


class TokenLogprob(TopLogprob, frozen=True):
    top_logprobs: tuple[TopLogprob, ...] = ()


class Logprobs(msgspec.Struct, frozen=True):
    content: tuple[TokenLogprob, ...] | None = None


class Choice(msgspec.Struct, frozen=True):
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: Logprobs | None = None


class StreamError(msgspec.Struct, frozen=True):
    message: str = ""
    code: int = 500


class TokenChunk(msgspec.Struct, frozen=True):
    """One event of the stream: at most one choice, since every request has ``n`` = 1."""

    choices: tuple[Choice, ...] = ()
    error: StreamError | None = None


_chunk_decoder = msgspec.json.Decoder(TokenChunk)
_DATA = b"data: "
_DONE = b"[DONE]"


class EventParser:
    """Server-sent events out of byte chunks that may be cut anywhere."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterable[TokenChunk]:
        """The complete events in ``data``; raises msgspec.DecodeError on malformed ones."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            if event.startswith(_DATA) and not event.startswith(_DATA + _DONE):
                yield _chunk_decoder.decode(event[len(_DATA) :])


class TokenStreamer(Protocol):
    """What turns a ``TokenRequest`` into tokens: implemented by the ingress's dispatcher."""

    def stream(self, request: TokenRequest) -> AsyncIterator[Choice]:
        """Yields choices until one has a finish reason; raises ``RefusedError`` otherwise."""
        ...


class RefusedError(Exception):
    """The request ends without an answer; ``status`` is the HTTP status that says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
