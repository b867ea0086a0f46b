"""A deployment has SLO classes: kinds of requests with latency targets of their own."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from macroserve.core.request import Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class SloClass:
    """The requests of a class share latency targets."""

    name: str
    slo: Slo
    attainment: float = 0.9
    """Share of its requests that should meet all targets, 0 to 1."""
    share: float | None = None
    """Expected share of all requests, 0 to 1; None if nobody has said it."""
    models: tuple[str, ...] = ()
    """Names of the model by which a request belongs to the class."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the class that ``to_dict`` has described."""
        slo, models = Slo(**values["slo"]), tuple(values["models"])
        return cls(**{**values, "slo": slo, "models": models})
