"""Groups of prompts with a common prefix, as in usual benchmarks of prefix caches."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from macroserve.workload.arrivals import Arrival

SYNTAX = "groups=150,prompts=5,tokens=6000"
_FIELDS = re.compile(r"groups=(\d+),(?:prompts=(\d+),)?tokens=(\d+)")
MAX_PROMPTS = 10**9
"""Maximum number of different prompts; more never repeat."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Groups of equally likely prompts, each with its own prefix (a system prompt).

    llm-d publishes results for 150 groups of 5 prompts that share 6,000 tokens. Raises ValueError
    for numbers below 1.
    """

    num_groups: int
    num_prompts: int | None
    """Prompts per group; None: no prompt is repeated."""
    num_tokens: int
    """Tokens of the prefix."""

    def __post_init__(self) -> None:
        num_prompts = 1 if self.num_prompts is None else self.num_prompts
        if min(self.num_groups, num_prompts, self.num_tokens) < 1:
            raise ValueError("groups, prompts and tokens must be at least 1")
        if self.num_groups * num_prompts > MAX_PROMPTS:
            raise ValueError(f"groups times prompts must be at most {MAX_PROMPTS:,}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a text like ``SYNTAX``; raise ValueError for another text."""
        if not (found := _FIELDS.fullmatch(text)):
            raise ValueError(f"expected {SYNTAX}, got {text!r}")
        groups, prompts, tokens = found.groups()
        return cls(int(groups), None if prompts is None else int(prompts), int(tokens))

    def applied(self, arrivals: Iterator[Arrival], rng: np.random.Generator) -> Iterator[Arrival]:
        """Yield the arrivals with a group's prefix before each prompt."""
        for number, arrival in enumerate(arrivals):
            if self.num_prompts is None:
                group, own = int(rng.integers(self.num_groups)), self.num_groups + number
            else:
                prompt = int(rng.integers(self.num_groups * self.num_prompts))
                group, own = prompt // self.num_prompts, self.num_groups + prompt
            # A block is as long as the prefix; the rest of the prompt takes one or more.
            num_own = -(-arrival.num_prompt_tokens // self.num_tokens)
            yield arrival._replace(
                num_prompt_tokens=self.num_tokens + arrival.num_prompt_tokens,
                block_ids=(group, *[own] * num_own),
                block_tokens=self.num_tokens,
            )
