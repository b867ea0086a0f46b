"""Conversations of several turns, as in a chat."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from macroserve.workload.arrivals import Arrival, Turn

SYNTAX = "turns=5,think=10s"
_FIELDS = re.compile(r"turns=(\d{1,9}),think=(\d{1,9}(?:\.\d{1,9})?)s")
MAX_TURNS = 1000
MAX_THINK_S = 86400.0


@dataclass(frozen=True, slots=True)
class MultiTurn:
    """Conversations whose turns follow a think time after the end of the previous response.

    Raises ValueError for numbers out of range.
    """

    num_turns: int
    """Requests per conversation."""
    mean_think_s: float
    """Mean of the exponentially distributed think times, seconds."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_turns <= MAX_TURNS:
            raise ValueError(f"a conversation must have 1 to {MAX_TURNS:,} turns")
        if not 0 <= self.mean_think_s <= MAX_THINK_S:
            raise ValueError(f"the mean think time must be 0 to {MAX_THINK_S:,.0f} s")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a text like ``SYNTAX``; raise ValueError for another text."""
        if not (found := _FIELDS.fullmatch(text)):
            raise ValueError(f"expected {SYNTAX}, got {text!r}")
        return cls(int(found[1]), float(found[2]))

    def think_s(self, rng: np.random.Generator) -> float:
        return rng.exponential(self.mean_think_s)

    def applied(
        self,
        arrivals: Iterator[Arrival],
        lengths: Callable[[], tuple[int, int]],
        rng: np.random.Generator,
    ) -> Iterator[Arrival]:
        """Yield the arrivals as first turns of conversations that share nothing.

        lengths: draws the tokens of a further message and of its response.
        rng: source of the think times.
        """
        for number, arrival in enumerate(arrivals):
            turns = [Turn(self.think_s(rng), *lengths()) for _ in range(self.num_turns - 1)]
            yield arrival._replace(turns=tuple(turns), block_ids=(number,), is_open=True)
