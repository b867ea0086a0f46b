"""SLO classes: named latency targets for kinds of requests."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from macroserve.core.request import Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class SloClass:
    name: str
    slo: Slo
    attainment: float = 0.9
    """Share of its requests that should meet all targets, 0 to 1."""
    share: float | None = None
    """Expected share of all requests, 0 to 1; None if unknown."""
    models: tuple[str, ...] = ()
    """Model names that put a request into the class."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        slo, models = Slo(**values["slo"]), tuple(values["models"])
        return cls(**{**values, "slo": slo, "models": models})
