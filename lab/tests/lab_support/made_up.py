"""Invented measurements, for tests of their processing."""

from collections.abc import Iterable

from macroserve_lab.papers.measurements import BestOf, Measurement


def made_up(measurements: Iterable[Measurement], value: float) -> dict[str, float]:
    """Return the same value for each; all searches for the best rate find it."""
    values: dict[str, float] = {}
    for each in measurements:
        values[each.key] = value
        if isinstance(each, BestOf):
            values |= {search.key: value for search in each.searches}
    return values
