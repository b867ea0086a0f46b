"""The number of instances that a MacroInstance should have now, and the reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from macroserve.api.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Change:
    """An entry of ``status.scalingHistory``, where `from_instances` is called ``from``."""

    time: datetime
    from_instances: int
    to_instances: int
    reason: str


@dataclass(frozen=True, slots=True)
class ScalingTarget:
    desired_instances: int
    reason: str
    """A sentence."""
    able: bool = True
    """Whether the number may change now; ``reason`` says why not."""
    metrics_available: bool | None = None
    """None if nothing depends on metrics, as without ``spec.autoscaling``."""
    change: Change | None = None
    """Change of the target in this reconcile, if any."""
    high_priority_ratio: float = 0.0
    """Share of the instances in the HP pool."""


def last_desired_instances(status: Mapping[str, Any], manifest: Manifest) -> int:
    """Return the number of the last reconcile; before the first one, that of ``spec``."""
    return status.get("targetInstances", manifest.spec.instances)
