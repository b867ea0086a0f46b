"""Arrivals of requests, each with the lengths of its prompt and its output."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import inf
from random import Random
from typing import NamedTuple

from macroserve.core.slo_class import SloClass
from macroserve.workload.turn import Turn

Lengths = Sequence[tuple[int, int]]
"""Prompt and output tokens of requests, each as likely as the others."""


BLOCK_TOKENS = 512
"""Tokens that a block id stands for in Mooncake's traces (``hash_ids``)."""


class Arrival(NamedTuple):
    """An arrival is one request of a load, to send to an endpoint or to simulate; where it has
    turns, it is a conversation's first one."""

    at_s: float
    """Seconds since the start of the run, or of the trace."""
    num_prompt_tokens: int
    num_output_tokens: int
    expected_tokens: int | None = None
    """Output tokens that a length predictor expects; see ``Request``."""
    max_new_tokens: int | None = None
    """Output tokens that the client asks for at most; None: as many as the model gives."""
    block_ids: tuple[int, ...] = ()
    """Ids of the prompt's blocks, from its start; equal ids are equal tokens. Empty where the
    prompt shares nothing."""
    block_tokens: int = BLOCK_TOKENS
    """Tokens that a block id stands for."""
    is_open: bool = False
    """True: the last block has no end; it goes on through prompt and response, and the turns after
    them."""
    turns: tuple[Turn, ...] = ()
    """Turns that follow in the conversation."""
    text: str = ""
    """Text of the prompt, or of its last message in a conversation; empty where the load has
    lengths alone."""
    slo_class: SloClass | None = None
    """SLO class with the targets of its requests; None for the default one."""

    @property
    def num_requests(self) -> int:
        """Return the number of requests, with the turns that follow."""
        return 1 + len(self.turns)

    @property
    def message_lengths(self) -> list[int]:
        """Return the tokens of the prompt, and of the message of each turn that follows."""
        return [self.num_prompt_tokens, *[turn.num_message_tokens for turn in self.turns]]

    @property
    def num_new_tokens(self) -> int:
        """Return the tokens of messages and responses, with those of the turns that follow."""
        num_output_tokens = sum([turn.num_output_tokens for turn in self.turns])
        return sum(self.message_lengths) + self.num_output_tokens + num_output_tokens

    def within(self, max_model_len: int) -> "Arrival":
        """Return the arrival without the turns from the first on that passes a model's length."""
        num_tokens = self.num_prompt_tokens + self.num_output_tokens
        for index, turn in enumerate(self.turns):
            num_tokens += turn.num_message_tokens + turn.num_output_tokens
            if num_tokens > max_model_len:
                return self._replace(turns=self.turns[:index])
        return self

    def next_turn(self, ended_s: float, num_context_tokens: int) -> "Arrival":
        """Return the turn that follows first, of which there is one.

        ended_s: time at which this turn's response ended.
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
    """Yield the arrivals between two times, with a gap and lengths drawn for each."""
    at_s = start_s
    while (at_s := at_s + gap_s()) < end_s:
        yield Arrival(at_s, *lengths())


def gamma_gaps(
    rate: float, variation: float, gamma: Callable[[float, float], float]
) -> Callable[[], float]:
    """Return a source of gaps, in seconds, between ``rate`` requests per second in the mean.

    variation: coefficient of variation (standard deviation over mean) of the gaps. 1 is a Poisson
        process, more is burstier (Apt-Serve, section 6: gamma arrivals with CV 1, 5, 10), and 0
        is a metronome.
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
    """Draw arrivals of a Poisson process whose rate, requests per second, changes every
    ``stretch_s``.

    Lengths are drawn from ``lengths``, of which there is at least one where a rate is not zero.
    """
    found: list[Arrival] = []
    for index, rate in enumerate(rates):
        if rate > 0:
            start_s = stretch_s * index
            gap_s, draw = partial(random.expovariate, rate), partial(random.choice, lengths)
            found += arrivals(gap_s, draw, start_s, start_s + stretch_s)
    return found


def bursty(
    rate: float, variation: float, duration_s: float, lengths: Lengths, random: Random
) -> list[Arrival]:
    """Draw arrivals whose gaps are gamma distributed; see ``gamma_gaps``."""
    gap_s = gamma_gaps(rate, variation, random.gammavariate)
    return list(arrivals(gap_s, partial(random.choice, lengths), end_s=duration_s))


def foreseen(arrivals: Sequence[Arrival], accuracy: float, random: Random) -> list[Arrival]:
    """Return the arrivals with an expected output length each.

    With the probability ``accuracy`` it is the request's own length, else that of any request.
    With 1 this is an oracle; EconoServe's predictor, with the padding that it adds, is right for
    0.70 to 0.78 of the requests (section 3.2).
    """

    def expected(arrival: Arrival) -> int:
        known = random.random() < accuracy
        return (arrival if known else random.choice(arrivals)).num_output_tokens

    return [arrival._replace(expected_tokens=expected(arrival)) for arrival in arrivals]


def scaled(lengths: Lengths, num_prompt_tokens: float, num_output_tokens: float) -> Lengths:
    """Return the lengths stretched to these means; at least one token each."""
    num = len(lengths)
    of_prompt = num_prompt_tokens * num / max(1, sum(prompt for prompt, _ in lengths))
    of_output = num_output_tokens * num / max(1, sum(output for _, output in lengths))
    return [
        (max(1, round(prompt * of_prompt)), max(1, round(output * of_output)))
        for prompt, output in lengths
    ]
