"""Requests to simulate: when they come and how long they are."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import NamedTuple

import numpy as np

Lengths = Sequence[tuple[int, int]]
"""Prompt and output tokens of requests, each as likely as the others."""


class Arrival(NamedTuple):
    """expected_tokens: of its output, as somebody says who knows the prompt; see ``Request``.
    max_new_tokens: that its client asks for; None asks for as many as the model gives."""

    at_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    expected_tokens: int | None = None
    max_new_tokens: int | None = None


def poisson(
    rates: Iterable[float], stretch_s: float, lengths: Lengths, random: Random
) -> list[Arrival]:
    """Arrivals of a Poisson process whose rate, requests per second, changes every ``stretch_s``.

    Lengths are drawn from ``lengths``, of which there is at least one where a rate is not zero.
    """
    arrivals = []
    for index, rate in enumerate(rates):
        if rate > 0:
            start_s = stretch_s * index
            gap = partial(random.expovariate, rate)
            arrivals += _arrivals(start_s, start_s + stretch_s, gap, lengths, random)
    return arrivals


def bursty(
    rate: float, variation: float, duration_s: float, lengths: Lengths, random: Random
) -> list[Arrival]:
    """Arrivals whose gaps are gamma distributed, ``rate`` requests per second in the mean.

    variation: standard deviation of the gaps over their mean; 1 is a Poisson process.
    """
    shape = 1 / variation**2
    gap = partial(random.gammavariate, shape, 1 / (rate * shape))
    return _arrivals(0.0, duration_s, gap, lengths, random)


def _arrivals(
    start_s: float, end_s: float, gap_s: Callable[[], float], lengths: Lengths, random: Random
) -> list[Arrival]:
    arrivals = []
    at_s = start_s
    while (at_s := at_s + gap_s()) < end_s:
        arrivals.append(Arrival(at_s, *random.choice(lengths)))
    return arrivals


def foreseen(arrivals: Sequence[Arrival], accuracy: float, random: Random) -> list[Arrival]:
    """The same with a length expected of each output: its own with the probability ``accuracy``,
    that of any other else. With 1 this is an oracle; EconoServe's predictor, with the padding that
    it adds, is right for 0.70 to 0.78 of the requests (section 3.2)."""

    def expected(arrival: Arrival) -> int:
        known = random.random() < accuracy
        return (arrival if known else random.choice(arrivals)).num_output_tokens

    return [arrival._replace(expected_tokens=expected(arrival)) for arrival in arrivals]


def scaled(lengths: Lengths, num_prompt_tokens: float, num_output_tokens: float) -> Lengths:
    """The same lengths, stretched to these means; at least one token each."""
    num = len(lengths)
    of_prompt = num_prompt_tokens * num / max(1, sum(prompt for prompt, _ in lengths))
    of_output = num_output_tokens * num / max(1, sum(output for _, output in lengths))
    return [
        (max(1, round(prompt * of_prompt)), max(1, round(output * of_output)))
        for prompt, output in lengths
    ]


def arrival_times(rate: float, cv: float, rng: np.random.Generator) -> Iterator[float]:
    """Arrival times in seconds from the start, without end, at ``rate`` requests per second.

    cv: coefficient of variation (standard deviation over mean) of the gaps. 1 is a Poisson
        process, more is burstier (Apt-Serve, section 6: gamma arrivals with CV 1, 5, 10), and 0
        is a metronome.
    """
    now_s = 0.0
    while True:
        # A gamma variable of shape k has mean k * scale and CV 1 / sqrt(k).
        now_s += rng.gamma(cv**-2, cv**2 / rate) if cv > 0 else 1 / rate
        yield now_s


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """arrival_s: seconds since the start of the run, or of the trace."""

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
