"""The highest rate at which enough requests meet their targets."""

from collections.abc import Callable

GROWTH = 1.3
"""From one rate to the next while all is well: attainment need not fall steadily, so that a search
that only looked above could miss where it fails below."""

PRECISION = 0.03
"""Relative; about as much as two seeds differ."""


def goodput(attains: Callable[[float], bool], lowest: float, highest: float) -> float:
    """Requests per second up to which ``attains`` holds; 0 where it fails at ``lowest`` already.

    attains: whether attainment at a rate is at its level. No rate above ``highest`` is tried.
    """
    if not attains(lowest):
        return 0.0
    held, rate = lowest, lowest * GROWTH
    while rate <= highest and attains(rate):
        held, rate = rate, rate * GROWTH
    failed = min(rate, highest)
    while failed > held * (1 + PRECISION):
        middle = (held * failed) ** 0.5
        if attains(middle):
            held = middle
        else:
            failed = middle
    return held
