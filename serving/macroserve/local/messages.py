"""Messages between ``macroserve up`` and the process of its deployment.

``macroserve up`` also sends a ``DesiredFleet`` whenever the manifest changes. Messages are pickled:
both ends have one version and one user.
"""

from dataclasses import dataclass, field

from macroserve.core.scaling.fleet import DesiredFleet
from macroserve.local.cluster import ClusterOptions


@dataclass(frozen=True, slots=True)
class Setup:
    """``macroserve up`` sends this message first."""

    cluster: ClusterOptions
    private: str
    """Base URL of the metrics."""
    admin_token: str = field(repr=False)
    desired: DesiredFleet
    tpot_s: float
    """Target for the time per output token, seconds."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event is a sentence for people about something that happened."""

    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The deployment failed; its process ends next."""

    reason: str
