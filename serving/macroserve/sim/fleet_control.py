"""A fleet control watches a simulated fleet at intervals, and may change it."""

from abc import ABC, abstractmethod

from macroserve.sim.device import SimRequest
from macroserve.sim.results import RunResult


class FleetControl(ABC):
    """A fleet control is called in the course of a simulation.

    interval_s: Time from one look at the fleet to the next, seconds.
    """

    interval_s: float

    @abstractmethod
    def read(self, known: RunResult, now: float) -> None:
        """Look at the fleet, and change it where that is due.

        known: the results so far.
        """

    @abstractmethod
    def ended(self, request: SimRequest, now: float, *, refused: bool) -> None:
        """Take note of a request that has ended or was refused."""
