"""A load whose prompts are texts of a data set."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from macroserve.workload.arrivals import Arrival, gamma_gaps
from macroserve.workload.endless_load import EndlessLoad
from macroserve.workload.sharegpt import ShareGpt
from macroserve.workload.turn import Turn


@dataclass(frozen=True, slots=True)
class TextLoad(EndlessLoad):
    """A text load is an endless stream of a data set's conversations in a random order, and again
    in that order after the last.

    ``multi_turn`` has the most turns of a conversation; without it only first messages are sent.
    """

    texts: ShareGpt

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
