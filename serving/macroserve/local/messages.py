"""What ``macroserve up`` and the process of its deployment tell each other.

Besides these, the process is sent a ``DesiredFleet`` whenever the manifest changes. They are
pickled: both ends are of one version and one user.
"""

from dataclasses import dataclass, field

from macroserve.core.scaling.fleet import DesiredFleet
from macroserve.serving.ray.cluster import ClusterOptions


@dataclass(frozen=True, slots=True)
class Setup:
    """What the process is sent first. private: base URL of the admin API. tpot_s: the target."""

    cluster: ClusterOptions
    private: str
    admin_token: str = field(repr=False)
    desired: DesiredFleet
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Event:
    """A sentence for people."""

    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Why the deployment ends; the process ends next."""

    reason: str
