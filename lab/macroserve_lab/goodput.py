"""The search for the highest rate at which enough requests meet their targets."""

from collections.abc import Callable

GROWTH = 1.3
"""Factor from one rate to the next, on the way up."""

PATIENCE = 5
"""Successive rates that must fail, as attainment is not monotonic: EcoServe pays for prefills with
the mean saved time of decodes, so that with few decodes short responses miss a TPOT that they meet
among many."""

PRECISION = 0.03
"""Relative tolerance; about as much as two seeds differ."""


def goodput(
    attains: Callable[[float], bool], lowest: float, highest: float, patience: int = PATIENCE
) -> float:
    """Return the highest rate from ``lowest`` to ``highest``, requests per second, at which
    ``attains`` holds; 0 without one.

    patience: number of successive failing rates after which the search ends.
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
