"""The goals of a deployment are the attainments that its requests are to reach."""

from dataclasses import dataclass

from macroserve.core.request import DEFAULT_CLASS
from macroserve.core.slo_class import SloClass


@dataclass(frozen=True, slots=True)
class Goals:
    """The goals are the attainments to reach."""

    attainment: float
    """Share of the default class's requests that should meet their targets."""
    slo_classes: tuple[SloClass, ...] = ()

    @property
    def by_class(self) -> dict[str, float]:
        """Return the attainment to reach by the name of the class."""
        others = {each.name: each.attainment for each in self.slo_classes}
        return {DEFAULT_CLASS: self.attainment, **others}
