"""A load whose prompts are texts of a data set."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Self

import numpy as np

from macroserve.workload.arrivals import Arrival, check_process, gamma_gaps
from macroserve.workload.multi_turn import MultiTurn
from macroserve.workload.sharegpt import ShareGpt
from macroserve.workload.turn import Turn


@dataclass(frozen=True, slots=True)
class TextLoad:
    """A text load is an endless stream of a data set's conversations in a random order, and again
    in that order after the last. Without ``multi_turn`` only their first messages are sent.

    Raises ValueError as ``check_process`` does.
    """

    rate: float
    """Arrivals per second."""
    cv: float
    """Coefficient of variation of the gaps; see ``gamma_gaps``."""
    texts: ShareGpt
    multi_turn: MultiTurn | None = None
    """Most turns of a conversation, and the think times between them."""

    def __post_init__(self) -> None:
        check_process(self.rate, self.cv)

    @property
    def intensity(self) -> float:
        return self.rate

    @property
    def unit(self) -> str:
        return "conversations/s" if self.multi_turn else "req/s"

    def at(self, intensity: float) -> Self:
        return replace(self, rate=intensity)

    def max_intensity(self, duration_s: float) -> float:
        return math.inf

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        gaps, orders, thinks = np.random.default_rng(seed).spawn(3)
        conversations = self.texts.conversations
        order = orders.permutation(len(conversations)).tolist()
        gap_s = gamma_gaps(self.rate, self.cv, gaps.gamma)
        at_s = 0.0
        for number in count():
            at_s += gap_s()
            index = order[number % len(order)]
            first, *others = conversations[index]
            turns: list[Turn] = []
            if self.multi_turn:
                turns = [
                    Turn(
                        self.multi_turn.think_s(thinks),
                        each.num_message_tokens,
                        each.num_output_tokens,
                        each.text,
                    )
                    for each in others[: self.multi_turn.num_turns - 1]
                ]
            yield Arrival(
                at_s,
                first.num_message_tokens,
                first.num_output_tokens,
                block_ids=(index,),
                is_open=True,
                turns=tuple(turns),
                text=first.text,
            )
