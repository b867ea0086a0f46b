"""Values that nobody measured, for tests of what is made of them."""

from collections.abc import Iterable

from macroserve_lab.papers.measurements import BestOf, Measurement


def made_up(measurements: Iterable[Measurement], value: float) -> dict[str, float]:
    """The same for each; of searches for the best, all of them find it."""
    values: dict[str, float] = {}
    for each in measurements:
        values[each.key] = value
        if isinstance(each, BestOf):
            values |= {search.key: value for search in each.searches}
    return values
