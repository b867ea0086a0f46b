"""Requests to simulate: when they come and how long they are."""

from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

Lengths = Sequence[tuple[int, int]]
"""Prompt and output tokens of requests, each as likely as the others."""


class Arrival(NamedTuple):
    at_s: float
    num_prompt_tokens: int
    num_output_tokens: int


def poisson(
    rates: Iterable[float], stretch_s: float, lengths: Lengths, random: Random
) -> list[Arrival]:
    """Arrivals of a Poisson process whose rate, requests per second, changes every ``stretch_s``.

    Lengths are drawn from ``lengths``, of which there is at least one where a rate is not zero.
    """
    arrivals = []
    start_s = 0.0
    for rate in rates:
        at_s = start_s
        while rate > 0 and (at_s := at_s + random.expovariate(rate)) < start_s + stretch_s:
            arrivals.append(Arrival(at_s, *random.choice(lengths)))
        start_s += stretch_s
    return arrivals


def bursty(
    rate: float, variation: float, duration_s: float, lengths: Lengths, random: Random
) -> list[Arrival]:
    """Arrivals whose gaps are gamma distributed, ``rate`` requests per second in the mean.

    variation: standard deviation of the gaps over their mean; 1 is a Poisson process.
    """
    shape = 1 / variation**2
    arrivals = []
    at_s = 0.0
    while (at_s := at_s + random.gammavariate(shape, 1 / (rate * shape))) < duration_s:
        arrivals.append(Arrival(at_s, *random.choice(lengths)))
    return arrivals


def scaled(lengths: Lengths, num_prompt_tokens: float, num_output_tokens: float) -> Lengths:
    """The same lengths, stretched to these means; at least one token each."""
    num = len(lengths)
    of_prompt = num_prompt_tokens * num / max(1, sum(prompt for prompt, _ in lengths))
    of_output = num_output_tokens * num / max(1, sum(output for _, output in lengths))
    return [
        (max(1, round(prompt * of_prompt)), max(1, round(output * of_output)))
        for prompt, output in lengths
    ]
