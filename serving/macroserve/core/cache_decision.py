"""Decision on whether an engine uses one of its optional caches."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheDecision:
    """A decision with its reason; logs and status show it as ``on: <reason>``."""

    on: bool
    reason: str

    def __str__(self) -> str:
        return f"{'on' if self.on else 'off'}: {self.reason}"
