"""The scaling target is the number of instances that a MacroInstance should have now, and the
reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from macroserve.api.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Change:
    """A change is one entry of ``status.scalingHistory``; `from_instances` is called ``from``
    there.
    """

    time: datetime
    from_instances: int
    to_instances: int
    reason: str


@dataclass(frozen=True, slots=True)
class ScalingTarget:
    """The number of instances that there should be now.

    Attributes:
        reason: Why so many, a sentence.
        able: Whether the number may change now. A hold (no metrics, a window that is not
            over) keeps the last target, and ``reason`` says what it waits for.
        metrics_available: None if nothing depends on metrics, as without
            ``spec.autoscaling``.
        change: Change of the target in this reconcile, if there is one.
        high_priority_ratio: Share of the instances in the HP pool.
    """

    desired_instances: int
    reason: str
    able: bool = True
    metrics_available: bool | None = None
    change: Change | None = None
    high_priority_ratio: float = 0.0


def last_desired_instances(status: Mapping[str, Any], manifest: Manifest) -> int:
    """Return the number of the last reconcile; before the first one, the number of ``spec``."""
    return status.get("targetInstances", manifest.spec.instances)
