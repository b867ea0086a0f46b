"""Interface of rules that observe a simulated fleet at intervals and may change it."""

from abc import ABC, abstractmethod

from macroserve.sim.device import SimRequest
from macroserve.sim.results import RunResult


class FleetControl(ABC):
    """A rule that changes a fleet in the course of a simulation."""

    interval_s: float
    """Time between two calls of ``read``, seconds."""

    @abstractmethod
    def read(self, known: RunResult, now: float) -> None:
        """Observe the fleet and the results so far, and change the fleet if due."""

    @abstractmethod
    def ended(self, request: SimRequest, now: float, *, refused: bool) -> None:
        """Observe a request that has ended or was refused."""
