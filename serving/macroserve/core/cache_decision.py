"""A decision tells whether an engine uses one of its kinds of cache."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheDecision:
    """The decision appears in logs and status as ``on: `` or ``off: `` and the reason."""

    on: bool
    reason: str

    def __str__(self) -> str:
        return f"{'on' if self.on else 'off'}: {self.reason}"
