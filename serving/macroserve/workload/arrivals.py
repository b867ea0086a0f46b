"""Arrivals of requests with the lengths of their prompts and outputs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import inf
from random import Random
from typing import NamedTuple

from macroserve.core.slo_class import SloClass

Lengths = Sequence[tuple[int, int]]
"""Equally likely pairs of prompt and output tokens."""

BLOCK_TOKENS = 512
"""Tokens per block id in Mooncake's traces (``hash_ids``)."""


class Turn(NamedTuple):
    """A later request of a conversation, whose prompt is everything before it and a message."""

    think_s: float
    """Seconds from the end of the previous response to this turn."""
    num_message_tokens: int
    num_output_tokens: int
    text: str = ""
    """Text of the message; empty in a load of lengths."""


class Arrival(NamedTuple):
    """A request of a load, to send or to simulate; with turns, the first of a conversation."""

    at_s: float
    """Seconds since the start of the run or of the trace."""
    num_prompt_tokens: int
    num_output_tokens: int
    expected_tokens: int | None = None
    """Output tokens that a length predictor expects; see ``Request``."""
    max_new_tokens: int | None = None
    """Client's limit on output tokens; None without a limit."""
    block_ids: tuple[int, ...] = ()
    """Ids of the prompt's blocks, from its start; equal ids mean equal tokens. Empty if the prompt
    shares nothing."""
    block_tokens: int = BLOCK_TOKENS
    """Tokens per block id."""
    is_open: bool = False
    """Whether the last block is unbounded: it covers the rest of the conversation."""
    turns: tuple[Turn, ...] = ()
    """Turns that follow in the conversation."""
    text: str = ""
    """Text of the prompt or of a conversation's last message; empty in a load of lengths."""
    slo_class: SloClass | None = None
    """None for the default class."""

    @property
    def num_requests(self) -> int:
        """Return the number of requests including the turns that follow."""
        return 1 + len(self.turns)

    @property
    def message_lengths(self) -> list[int]:
        """Return the tokens of the prompt and of each following turn's message."""
        return [self.num_prompt_tokens, *[turn.num_message_tokens for turn in self.turns]]

    @property
    def num_new_tokens(self) -> int:
        """Return the tokens of all messages and responses, including the turns that follow."""
        num_output_tokens = sum([turn.num_output_tokens for turn in self.turns])
        return sum(self.message_lengths) + self.num_output_tokens + num_output_tokens

    def within(self, max_model_len: int) -> "Arrival":
        """Return the arrival without the turns that exceed a model's length."""
        num_tokens = self.num_prompt_tokens + self.num_output_tokens
        for index, turn in enumerate(self.turns):
            num_tokens += turn.num_message_tokens + turn.num_output_tokens
            if num_tokens > max_model_len:
                return self._replace(turns=self.turns[:index])
        return self

    def next_turn(self, ended_s: float, num_context_tokens: int) -> "Arrival":
        """Return the next turn, which must exist.

        ended_s: end of this turn's response, seconds.
        num_context_tokens: tokens of this turn's prompt and response.
        """
        turn = self.turns[0]
        return self._replace(
            at_s=ended_s + turn.think_s,
            num_prompt_tokens=num_context_tokens + turn.num_message_tokens,
            num_output_tokens=turn.num_output_tokens,
            turns=self.turns[1:],
            text=turn.text,
        )


def arrivals(
    gap_s: Callable[[], float],
    lengths: Callable[[], tuple[int, int]],
    start_s: float = 0.0,
    end_s: float = inf,
) -> Iterator[Arrival]:
    """Yield arrivals between two times, with a gap and lengths drawn for each."""
    at_s = start_s
    while (at_s := at_s + gap_s()) < end_s:
        yield Arrival(at_s, *lengths())


def gamma_gaps(
    rate: float, variation: float, gamma: Callable[[float, float], float]
) -> Callable[[], float]:
    """Return a source of gaps between requests, seconds, at a mean ``rate`` per second.

    variation: coefficient of variation (standard deviation over mean) of the gaps. 1 is a Poisson
        process, more is burstier (Apt-Serve, section 6: gamma arrivals with CV 1, 5, 10), 0 is
        regular.
    gamma: draws from the gamma distribution of a shape and a scale.
    """
    if variation == 0:
        return lambda: 1 / rate
    # A gamma variable of shape k has mean k * scale and CV 1 / sqrt(k).
    shape = 1 / variation**2
    return partial(gamma, shape, 1 / (rate * shape))


def poisson(
    rates: Iterable[float], stretch_s: float, lengths: Lengths, random: Random
) -> list[Arrival]:
    """Draw arrivals of a Poisson process with the next of ``rates`` (per second) every
    ``stretch_s``."""
    found: list[Arrival] = []
    for index, rate in enumerate(rates):
        if rate > 0:
            start_s = stretch_s * index
            gap_s, draw = partial(random.expovariate, rate), partial(random.choice, lengths)
            found += arrivals(gap_s, draw, start_s, start_s + stretch_s)
    return found


def scaled(lengths: Lengths, num_prompt_tokens: float, num_output_tokens: float) -> Lengths:
    """Return the lengths scaled to these means, at least one token each."""
    num = len(lengths)
    of_prompt = num_prompt_tokens * num / max(1, sum(prompt for prompt, _ in lengths))
    of_output = num_output_tokens * num / max(1, sum(output for _, output in lengths))
    return [
        (max(1, round(prompt * of_prompt)), max(1, round(output * of_output)))
        for prompt, output in lengths
    ]
