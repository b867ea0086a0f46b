"""Conversations of several turns, as users of a chat have them."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from macroserve.workload.arrivals import Arrival
from macroserve.workload.turn import Turn

SYNTAX = "turns=5,think=10s"
_FIELDS = re.compile(r"turns=(\d{1,9}),think=(\d{1,9}(?:\.\d{1,9})?)s")
MAX_TURNS = 1000
MAX_THINK_S = 86400.0


@dataclass(frozen=True, slots=True)
class MultiTurn:
    """Arrivals begin conversations. A turn comes a think time after the response before it has
    ended, however long that took: a user reads and writes in between.

    Raises ValueError for numbers out of range.
    """

    num_turns: int
    """Requests of a conversation."""
    mean_think_s: float
    """Mean of the think times, which are exponentially distributed."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_turns <= MAX_TURNS:
            raise ValueError(f"a conversation must have 1 to {MAX_TURNS:,} turns")
        if not 0 <= self.mean_think_s <= MAX_THINK_S:
            raise ValueError(f"the mean think time must be 0 to {MAX_THINK_S:,.0f} s")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what a text like ``SYNTAX`` says. Raises ValueError for another text."""
        if not (found := _FIELDS.fullmatch(text)):
            raise ValueError(f"expected {SYNTAX}, got {text!r}")
        return cls(int(found[1]), float(found[2]))

    def think_s(self, rng: np.random.Generator) -> float:
        """Draw one think time."""
        return rng.exponential(self.mean_think_s)

    def applied(
        self,
        arrivals: Iterator[Arrival],
        lengths: Callable[[], tuple[int, int]],
        rng: np.random.Generator,
    ) -> Iterator[Arrival]:
        """Yield the arrivals as first turns of conversations that share nothing.

        lengths: draws the tokens of a further message and of its response.
        rng: draws the think times.
        """
        for number, arrival in enumerate(arrivals):
            turns = [Turn(self.think_s(rng), *lengths()) for _ in range(self.num_turns - 1)]
            yield arrival._replace(turns=tuple(turns), block_ids=(number,), is_open=True)
