"""Search for goodput, the highest load at which attainment holds a level."""

import math
from collections.abc import Generator
from dataclasses import dataclass

MAX_STEPS = 10
"""Maximum doublings or halvings of the first load: a factor of 1024."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Result of a search. Loads are requests per second or time scales of a trace."""

    level: float
    load: float | None
    """The highest load that held the level; None if not even the lowest one tried did."""
    is_capped: bool = False
    """Whether no load up to the maximum failed, so that the goodput may be higher."""
    lower_attainment: float | None = None
    """Attainment at half of ``load``."""

    @property
    def holds_below(self) -> bool:
        """Return whether half the load holds the level as well: attainment is not monotone."""
        return self.lower_attainment is None or self.lower_attainment >= self.level


def search_goodput(
    start: float, level: float, tolerance: float = 0.05, max_load: float = math.inf
) -> Generator[float, float, Goodput]:
    """Yield the load to probe next, receive its attainment by ``send``, return the goodput.

    The search doubles or halves the load from ``start`` until the level is held at one load and
    missed at the next, bisects until these two are within ``tolerance``, then probes half the load
    found. It never probes above ``max_load``.

    Raises ValueError immediately for a level outside (0, 1] or a start outside (0, max_load].
    """
    if not 0 < level <= 1:
        raise ValueError(f"the level of attainment must be above 0 and at most 1, got {level}")
    if not 0 < start <= max_load:
        raise ValueError(
            f"the search starts at a load of {start:.4g}, but only loads up to {max_load:.4g} last "
            "for a whole probe"
        )
    return _search(start, level, tolerance, max_load)


def _search(
    start: float, level: float, tolerance: float, max_load: float
) -> Generator[float, float, Goodput]:
    held: float | None = None
    missed: float | None = None
    load = start
    for _ in range(1 + MAX_STEPS):
        if (yield load) >= level:
            held = load
            load = min(2 * load, max_load)
        else:
            missed = load
            load = load / 2
        if held == max_load or (held and missed):
            break
    if held is None:
        return Goodput(level, None)
    while missed is not None and missed > (1 + tolerance) * held:
        middle = math.sqrt(held * missed)
        if (yield middle) >= level:
            held = middle
        else:
            missed = middle
    lower_attainment = yield held / 2
    return Goodput(level, held, missed is None, lower_attainment)
