"""The highest rate at which enough requests meet their targets."""

from collections.abc import Callable

GROWTH = 1.3
"""Factor from one rate to the next, on the way up."""

PATIENCE = 5
"""So many rates in a row have to fail, as attainment need not fall steadily. EcoServe pays for
prefills with the mean of what its decodes have saved, and where only few decode, short responses
miss their pace that would keep it among many."""

PRECISION = 0.03
"""Relative; about as much as two seeds differ."""


def goodput(
    attains: Callable[[float], bool], lowest: float, highest: float, patience: int = PATIENCE
) -> float:
    """The highest rate, requests per second, at which ``attains`` holds; 0 where none is found.

    attains: whether attainment at a rate is at its level. No rate is tried below ``lowest`` or
    above ``highest``, or once ``patience`` rates in a row have failed.
    """
    held, rate, num_failed = 0.0, lowest, 0
    while rate <= highest and num_failed < patience:
        if attains(rate):
            held, num_failed = rate, 0
        else:
            num_failed += 1
        rate *= GROWTH
    failed = min(held * GROWTH, highest)
    while failed > held * (1 + PRECISION):
        middle = (held * failed) ** 0.5
        if attains(middle):
            held = middle
        else:
            failed = middle
    return held
