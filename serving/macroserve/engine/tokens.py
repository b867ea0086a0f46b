"""Token requests and choices between an ingress and an instance (protocol: ``token_frames``)."""

import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import msgspec
from msgspec.structs import replace

from macroserve.api.messages import RequestInfo

TOKEN_BYTES = 4
"""Bytes of a token id in a message."""

HAND_BACK_PREFIX = "macroserve:"
"""Prefix of the ``stop_reason`` of a handed-back stream, before its ``HandBackReason``."""

DEAD_END = "macroserve-dead-end"
"""``stop_reason`` of a stream whose grammar allows no further token, on any instance."""


@dataclass(frozen=True, slots=True)
class StopStringMet:
    """Message of a cancellation: the stream's text has met a stop string."""

    num_tokens: int
    """Tokens of the whole stream up to the one that completed the stop string."""


def stop_string_met(end: BaseException) -> StopStringMet | None:
    """Return the message if a stop string ended the stream, else None."""
    return next((arg for arg in end.args if isinstance(arg, StopStringMet)), None)


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for one sequence, from an ingress to an instance."""

    request_id: str
    """ID of the client's request, the same in each attempt."""
    info: RequestInfo
    token_ids: bytes
    """The prompt (see ``pack``). A list of 32,000 would take milliseconds to encode and to decode,
    which would delay all tokens."""
    max_new_tokens: int
    sampling: dict[str, Any]
    """Other fields of vLLM's ``SamplingParams`` as JSON values."""
    adapter: str | None = None
    """Name of the LoRA adapter; None for the model itself."""
    cache_salt: str | None = None
    features: bytes = b""
    """Images of the prompt (``vllm.features``)."""
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: dict[str, Any] | None = None
    session: str | None = None
    """Session name from the client."""

    @classmethod
    def greedy(cls, info: RequestInfo, prompt: Iterable[int], num_tokens: int) -> Self:
        """Return a request for the first ``num_tokens`` tokens of greedy decoding."""
        return cls(
            request_id=info.route_id,
            info=info,
            token_ids=pack(prompt),
            max_new_tokens=num_tokens,
            sampling={"temperature": 0.0, "ignore_eos": True, "detokenize": False},
        )

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.token_ids) // TOKEN_BYTES

    @property
    def restartable(self) -> bool:
        """Return whether generation can continue on another instance with the tokens so far as part
        of the prompt; not with a grammar, whose state would be lost."""
        return self.sampling.get("structured_outputs") is None

    def attempt(self, info: RequestInfo, emitted: Sequence[int]) -> Self:
        """Return the request for another attempt, with the emitted tokens as part of the prompt."""
        if not emitted:
            return replace(self, info=info)
        sampling = {**self.sampling}
        if "min_tokens" in sampling:
            sampling["min_tokens"] = max(0, sampling["min_tokens"] - len(emitted))
        # The first tokens brought the logprobs; without them the prefix cache can be used.
        for name in ("prompt_logprobs", "skip_reading_prefix_cache"):
            sampling.pop(name, None)
        return replace(
            self,
            info=info,
            token_ids=self.token_ids + pack(emitted),
            max_new_tokens=max(1, self.max_new_tokens - len(emitted)),
            sampling=sampling,
        )


class Logprobs(msgspec.Struct, frozen=True):
    """Logprobs of tokens, with a row for each: that token, then the requested or likeliest ones.
    All numbers are little-endian and have four bytes. A prompt's first token has no row."""

    token_ids: bytes
    """Integers."""
    logprobs: bytes
    """Floats."""
    ranks: bytes
    """Integers, one a row: rank of its first token."""


class Choice(msgspec.Struct, frozen=True):
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: Logprobs | None = None
    num_cached: int = 0
    """Prompt tokens found in the prefix cache, with the first tokens."""
    prompt_logprobs: Logprobs | None = None
    """With the first tokens, if requested."""


Put = Callable[[Choice], None]
"""Consumer of one stream's choices; a callback, because a task that each token wakes would double
the CPU time of a token."""


class TokenStreamer(Protocol):
    """Source of a request's tokens, implemented by the ingress's dispatcher."""

    def info(self, request_id: str) -> RequestInfo:
        """Return the info of a request that arrives now, in the task that received it."""
        ...

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


def pack(token_ids: Iterable[int]) -> bytes:
    """Return token ids from 0 to 2^32 - 1 as little-endian unsigned 32-bit integers."""
    return _little_endian(array("I", token_ids)).tobytes()


def unpack(data: bytes) -> list[int]:
    """Return the token ids. Raises ValueError for no bytes, or a number not divisible by four."""
    if not data or len(data) % TOKEN_BYTES:
        raise ValueError(f"{len(data)} bytes are not token ids of four bytes each")
    return _little_endian(array("I", data)).tolist()


def _little_endian(ids: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        ids.byteswap()
    return ids
