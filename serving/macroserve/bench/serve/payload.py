"""Bodies of requests, generated from a seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, cycle

import msgspec
import numpy as np

from macroserve.workload.arrivals import Arrival, Turn

FIRST_TOKEN_ID = 10
"""Smallest token id that prompts use: many vocabularies begin with special tokens."""

WORDS = ("time", "way", "year", "work", "day", "home", "place", "water", "night", "story", "study")
"""Words that are mostly a single token in most tokenizers."""

Text = str | list[int]
"""A message or a response: text or token ids."""


class Endpoint(StrEnum):
    COMPLETIONS = "completions"
    """Prompts are token ids: lengths are exact with any tokenizer."""
    CHAT = "chat"
    """Prompts are words: lengths are approximate."""

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self is Endpoint.CHAT else "/v1/completions"


@dataclass(frozen=True, slots=True)
class PayloadMaker:
    """Generator of prompts, which share prefixes only as far as the load has common block ids."""

    model: str
    endpoint: Endpoint
    vocab_size: int
    seed: tuple[int, ...]
    """Different for every run against an endpoint, so that its prefix cache has no hits."""

    def __post_init__(self) -> None:
        if self.vocab_size <= FIRST_TOKEN_ID:
            raise ValueError(f"the vocabulary must have more than {FIRST_TOKEN_ID} tokens")

    def prompt(self, index: int, request: Arrival) -> Text:
        """Return the prompt of the run's request number ``index``."""
        if request.text:
            return request.text
        parts: list[np.ndarray] = []
        num_left = request.num_prompt_tokens
        for block_id in request.block_ids:
            if num_left <= 0:
                break
            rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(block_id,)))
            parts.append(self._draw(rng, request.block_tokens)[:num_left])
            num_left -= len(parts[-1])
        parts.append(self._draw(np.random.default_rng((*self.seed, index)), num_left))
        return self._text(np.concatenate(parts))

    def message(self, index: int, number: int, turn: Turn) -> Text:
        """Return the message of turn ``number`` in the conversation begun by request ``index``."""
        rng = np.random.default_rng((*self.seed, index, number))
        return turn.text or self._text(self._draw(rng, turn.num_message_tokens))

    def encode(
        self, said: Sequence[Text], num_output_tokens: int, *, goes_on: bool = False
    ) -> bytes:
        """Return the JSON body of a request.

        said: alternating messages and responses of a conversation; the last one is a message.
        goes_on: whether the response will be part of another prompt.
        """
        if self.endpoint is Endpoint.CHAT:
            roles = cycle(("user", "assistant"))
            messages = [
                {"role": role, "content": text} for role, text in zip(roles, said, strict=False)
            ]
            return encode_body(self.model, {"messages": messages}, num_output_tokens)
        if isinstance(said[0], str):
            return encode_body(self.model, {"prompt": "".join(map(str, said))}, num_output_tokens)
        ids = {"return_token_ids": True} if goes_on else {}
        prompt = {"prompt": list(chain.from_iterable(said)), **ids}
        return encode_body(self.model, prompt, num_output_tokens)

    def _text(self, drawn: np.ndarray) -> Text:
        return " ".join(drawn) if self.endpoint is Endpoint.CHAT else drawn.tolist()

    def _draw(self, rng: np.random.Generator, num_tokens: int) -> np.ndarray:
        if self.endpoint is Endpoint.CHAT:
            return rng.choice(WORDS, num_tokens)
        return rng.integers(FIRST_TOKEN_ID, self.vocab_size, num_tokens)


def encode_body(model: str, prompt: Mapping[str, object], num_output_tokens: int) -> bytes:
    """Return the JSON body of a streamed request for exactly ``num_output_tokens``.

    prompt: ``prompt`` or ``messages`` and related fields.
    """
    return msgspec.json.encode(
        {
            "model": model,
            **prompt,
            "max_tokens": num_output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
