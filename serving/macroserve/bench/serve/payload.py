"""Make the body of each request from a seed."""

from dataclasses import dataclass
from enum import StrEnum

import msgspec
import numpy as np

from macroserve.workload.arrivals import Arrival

FIRST_TOKEN_ID = 10
"""Smallest token id that prompts use: many vocabularies begin with special tokens."""

_WORDS = ("time", "way", "year", "work", "day", "home", "place", "water", "night", "story", "study")
"""Words, most of which are one token in most tokenizers."""


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
    """The payload maker gives every request of a run a prompt of its own.

    seed: differs for every run against one endpoint, whose prefix cache would answer otherwise.
    """

    model: str
    endpoint: Endpoint
    vocab_size: int
    seed: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.vocab_size <= FIRST_TOKEN_ID:
            raise ValueError(f"the vocabulary must have more than {FIRST_TOKEN_ID} tokens")

    def body(self, index: int, request: Arrival) -> bytes:
        """Return the JSON body of the run's request number ``index``."""
        rng = np.random.default_rng((*self.seed, index))
        if self.endpoint is Endpoint.CHAT:
            words = rng.choice(_WORDS, request.num_prompt_tokens)
            prompt = {"messages": [{"role": "user", "content": " ".join(words)}]}
        else:
            ids = rng.integers(FIRST_TOKEN_ID, self.vocab_size, request.num_prompt_tokens)
            prompt = {"prompt": ids.tolist()}
        return msgspec.json.encode(
            {
                "model": self.model,
                **prompt,
                "max_tokens": request.num_output_tokens,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
