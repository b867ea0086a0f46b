"""Meter a streamed response: find the chunks that carry tokens, and when they arrived."""

from array import array

import msgspec

from macroserve.api.sse import SseParser


class StreamError(Exception):
    """The endpoint reported an error inside the stream, in its own words."""


class MalformedStreamError(Exception):
    """The stream holds data other than OpenAI's chunks."""


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
        # Chat streams open with a chunk that says the role. Without that, a chunk with no text is
        # a token with none of its own, such as a part of a character, or a tool call.
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
    """The stream meter takes the raw bytes of one answer and the times of their arrival.

    first_token_s: time of the first token on the clock of ``feed``; None before that.
    last_token_s: time of the last token so far on the clock of ``feed``; None before the first.
    gaps_s: seconds between successive chunks with tokens; a chunk may carry several tokens.
    complete: whether the answer came to its end; a connection that breaks after that is no failure.
    text: the answer's text so far where ``keeps_answer``, else empty.
    token_ids: the answer's token ids so far where ``keeps_answer`` and the endpoint tells them.
    """

    def __init__(self, keeps_answer: bool = False) -> None:
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.gaps_s = array("f")
        self.complete = False
        self.text = ""
        self.token_ids: list[int] = []
        self._keeps_answer = keeps_answer
        self._sse = SseParser()
        self._usage: _Usage | None = None
        self._silent_end_s: float | None = None

    def feed(self, data: bytes, now: float) -> None:
        """Read bytes that arrived at ``now``; raise StreamError or MalformedStreamError."""
        for payload in self._sse.feed(data):
            if payload == b"[DONE]":
                self.complete = True
            else:
                self._read(payload, now)

    def close(self) -> None:
        """End the stream; called once, after the last byte."""
        # An ending chunk without text is the last token's in one engine (a special token) and
        # belongs to no token in another: the count tells.
        if self._silent_end_s is not None and self.num_tokens > self._num_token_chunks:
            self._on_token(self._silent_end_s)

    @property
    def num_prompt_tokens(self) -> int | None:
        """Return the prompt tokens as the endpoint counts them, None where it does not."""
        return self._usage.prompt_tokens if self._usage else None

    @property
    def num_cached_tokens(self) -> int | None:
        """Return the prompt tokens that a prefix cache had, None where the endpoint does not tell
        it."""
        details = self._usage and self._usage.prompt_tokens_details
        return details.cached_tokens if details else None

    @property
    def num_tokens(self) -> int:
        """Return the output tokens as the endpoint counts them, or else the chunks with tokens."""
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
    """Return the sentence in OpenAI's error object, or the object itself as text."""
    return str(error.get("message", error) if isinstance(error, dict) else error)
