"""Target attainments of a deployment."""

from dataclasses import dataclass

from macroserve.core.request import DEFAULT_CLASS
from macroserve.core.slo_class import SloClass


@dataclass(frozen=True, slots=True)
class Goals:
    attainment: float
    """Share of the default class's requests that should meet their targets."""
    slo_classes: tuple[SloClass, ...] = ()

    @property
    def by_class(self) -> dict[str, float]:
        """Return the target attainment by class."""
        others = {each.name: each.attainment for each in self.slo_classes}
        return {DEFAULT_CLASS: self.attainment, **others}
