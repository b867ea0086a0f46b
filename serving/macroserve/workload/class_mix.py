"""Mix of SLO classes in a load."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from macroserve.core.slo_class import SloClass
from macroserve.workload.arrivals import Arrival

STREAM = 1
"""Random stream for classes, so that other draws of the same seed do not depend on the mix."""


@dataclass(frozen=True, slots=True)
class ClassMix:
    """Random choice of a class for each request or conversation, by the classes' shares; the rest
    are of the default class.

    Raises ValueError if the shares exceed 1 together.
    """

    classes: tuple[SloClass, ...] = ()
    """Classes without a share get no request."""

    def __post_init__(self) -> None:
        if sum(self._shares) > 1:
            raise ValueError(
                f"the shares of the SLO classes must sum to at most 1, got {sum(self._shares):g}"
            )

    @property
    def _shares(self) -> list[float]:
        return [each.share or 0.0 for each in self.classes]

    def applied(self, arrivals: Iterable[Arrival], seed: int) -> list[Arrival]:
        """Return the arrivals with their classes, which depend on the seed alone."""
        if not any(self._shares):
            return list(arrivals)
        draw = np.random.default_rng((seed, STREAM)).random
        bounds = np.cumsum(self._shares)

        def drawn(arrival: Arrival) -> Arrival:
            index = int(np.searchsorted(bounds, draw(), side="right"))
            found = self.classes[index] if index < len(self.classes) else None
            return arrival._replace(slo_class=found)

        return [drawn(arrival) for arrival in arrivals]


ONE_CLASS = ClassMix()
"""Mix of the default class alone."""
