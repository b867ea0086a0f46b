"""Timing of a streamed response: the chunks that carry tokens, and when they arrived."""

from array import array

import msgspec

from macroserve.api.sse import SseParser


class StreamError(Exception):
    """An error that the endpoint reported inside the stream, in its own words."""


class MalformedStreamError(Exception):
    """Data in the stream other than OpenAI's chunks."""


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None

    @property
    def carries_token(self) -> bool:
        if self.text or (self.delta and self.delta.content):
            return True
        # Chat streams open with a chunk with the role. Any other chunk without text is a token
        # such as a part of a character, or a tool call.
        return not self.finish_reason and not (self.delta and self.delta.role)


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_decoder = msgspec.json.Decoder(_Chunk)


class StreamMeter:
    """Times of the tokens in one answer, from its raw bytes and their arrival times.

    keeps_answer: whether to collect ``text`` and, if the endpoint reports them, ``token_ids``.
    """

    def __init__(self, keeps_answer: bool = False) -> None:
        self.first_token_s: float | None = None
        """On the clock of ``feed``, like ``last_token_s``."""
        self.last_token_s: float | None = None
        self.gaps_s = array("f")
        """Seconds between successive chunks with tokens; a chunk may carry several tokens."""
        self.complete = False
        """Whether the answer has ended; a connection that breaks afterwards is no failure."""
        self.text = ""
        self.token_ids: list[int] = []
        self._keeps_answer = keeps_answer
        self._sse = SseParser()
        self._usage: _Usage | None = None
        self._silent_end_s: float | None = None

    def feed(self, data: bytes, now: float) -> None:
        """Read bytes that arrived at ``now``. Raises StreamError and MalformedStreamError."""
        for payload in self._sse.feed(data):
            if payload == b"[DONE]":
                self.complete = True
            else:
                self._read(payload, now)

    def close(self) -> None:
        """End the stream; called once, after the last byte."""
        # A last chunk without text is a special token in some engines and no token in others; the
        # number of tokens decides.
        if self._silent_end_s is not None and self.num_tokens > self._num_token_chunks:
            self._on_token(self._silent_end_s)

    @property
    def num_prompt_tokens(self) -> int | None:
        """Return the prompt tokens as reported by the endpoint, or None."""
        return self._usage.prompt_tokens if self._usage else None

    @property
    def num_cached_tokens(self) -> int | None:
        """Return the prompt tokens in a prefix cache as reported by the endpoint, or None."""
        details = self._usage and self._usage.prompt_tokens_details
        return details.cached_tokens if details else None

    @property
    def num_tokens(self) -> int:
        """Return the output tokens as reported by the endpoint, else the chunks with tokens."""
        return self._usage.completion_tokens if self._usage else self._num_token_chunks

    @property
    def _num_token_chunks(self) -> int:
        return 0 if self.first_token_s is None else 1 + len(self.gaps_s)

    def _read(self, payload: bytes, now: float) -> None:
        try:
            chunk = _decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise MalformedStreamError(f"{error}, in {payload[:100]!r}") from None
        if chunk.error:
            raise StreamError(error_message(chunk.error))
        if chunk.usage:
            self._usage = chunk.usage
        for choice in chunk.choices:
            if self._keeps_answer:
                self.text += choice.text or (choice.delta and choice.delta.content) or ""
                self.token_ids += choice.token_ids or ()
            if choice.carries_token:
                self._on_token(now)
            elif choice.finish_reason:
                self._silent_end_s = now
            self.complete = self.complete or choice.finish_reason is not None

    def _on_token(self, now: float) -> None:
        if self.last_token_s is None:
            self.first_token_s = now
        else:
            self.gaps_s.append(now - self.last_token_s)
        self.last_token_s = now


def error_message(error: object) -> str:
    """Return the message of OpenAI's error object, or the object itself as text."""
    return str(error.get("message", error) if isinstance(error, dict) else error)
