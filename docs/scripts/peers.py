"""Figures of the comparison with other routers, as its tables show them."""

import re
from collections.abc import Mapping, Sequence
from statistics import mean

LEVEL = 0.9
"""Attainment at which a rate counts as sustained."""
OURS = "macroserve"
RATIO_BOUNDS = {
    ("", ""): "",
    ("≥", ""): "≥",
    ("", "<"): ">",
    ("≥", "<"): ">",
    ("<", ""): "<",
    ("", "≥"): "≤",
    ("<", "≥"): "<",
}
"""Bound of a ratio, by the bounds of its two rates."""
Figures = Mapping[str, float]


def rates(figures: Figures, load: str) -> Sequence[str]:
    """Return the rates (requests per second) at which a load was sent, in order."""
    key = re.compile(rf"peers\.{OURS}\.{load}\.([\d.]+)\.attainment")
    return sorted((match[1] for name in figures if (match := key.fullmatch(name))), key=float)


def sustained(figures: Figures, load: str, deployment: str) -> str:
    """Return the sustained rate, or a bound where it lies beyond the rates that were sent."""
    bound = _bound(figures, load, deployment)
    return f"{bound} {_rate(figures, load, deployment):.1f}".lstrip()


def advantage(figures: Figures, load: str, others: Sequence[str]) -> str:
    """Return our sustained rate relative to the best of others, or a bound of it.

    It is unknown where both rates lie on the same side of those that were sent.
    """
    best = max(others, key=lambda name: _rate(figures, load, name))
    sign = RATIO_BOUNDS.get((_bound(figures, load, OURS), _bound(figures, load, best)))
    return "unknown" if sign is None else f"{sign} {_ratio(figures, load):.2f}".lstrip()


def mean_advantage(figures: Figures, loads: Sequence[str]) -> float:
    """Return the mean of the loads' relative rates, with bounds in place of unknown rates."""
    return mean(_ratio(figures, load) for load in loads)


def _ratio(figures: Figures, load: str) -> float:
    return figures[f"peers.goodput_ratio.{load}"]


def _rate(figures: Figures, load: str, deployment: str) -> float:
    return figures[f"peers.{deployment}.{load}.rate_at_90"]


def _bound(figures: Figures, load: str, deployment: str) -> str:
    """Return `<`, `≥`, or nothing where the rate lies between those that were sent."""
    if not figures[f"peers.{deployment}.{load}.rounds_outside"]:
        return ""
    lowest = rates(figures, load)[0]
    return "≥" if figures[f"peers.{deployment}.{load}.{lowest}.attainment"] >= LEVEL else "<"
