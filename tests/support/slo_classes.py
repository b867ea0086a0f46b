"""SLO classes for tests."""

from macroserve.core.request import DEFAULT_CLASS, Slo
from macroserve.core.slo_class import SloClass

SLO = Slo(5.0, 0.1)


def default_class(slo: Slo = SLO, attainment: float = 0.9) -> SloClass:
    return SloClass(name=DEFAULT_CLASS, slo=slo, attainment=attainment)


INTERACTIVE = SloClass(
    name="interactive", slo=Slo(1.0, 0.05), attainment=0.95, models=("llama-chat",)
)
BATCH = SloClass(name="batch", slo=Slo(30.0, 0.5), attainment=0.8)
