"""Growth of a simulated fleet under load (EcoServe, section 4.3)."""

from typing import NamedTuple

from macroserve.sim.device import SimRequest
from macroserve.sim.fleet_control import FleetControl
from macroserve.sim.results import RunResult
from macroserve.sim.router import FleetRouter


class Reading(NamedTuple):
    """State of a fleet at one moment."""

    at_s: float
    attainment: float
    """Attainment of the requests that ended or became late since the previous reading."""
    num_instances: int
    num_cells: int


class Growth(FleetControl):
    """Rule that adds an instance whenever the attainment is below ``goal``. New instances are ready
    at once, as if started beforehand."""

    def __init__(
        self, fleet: FleetRouter, *, goal: float, interval_s: float, max_instances: int
    ) -> None:
        self.interval_s = interval_s
        self.readings: list[Reading] = []
        self._fleet = fleet
        self._goal = goal
        self._max_instances = max_instances
        self._seen = 0, 0

    def read(self, known: RunResult, now: float) -> None:
        requests, attained = known.requests - self._seen[0], known.attained - self._seen[1]
        self._seen = known.requests, known.attained
        attainment = attained / requests if requests else 1.0
        num = len(self._fleet.instances)
        self.readings.append(Reading(now, attainment, num, len(self._fleet.cells)))
        if attainment < self._goal and num < self._max_instances:
            self._fleet.grow(num + 1, now)

    def ended(self, request: SimRequest, now: float, *, refused: bool) -> None:
        """Do nothing: ``read`` gets the results so far."""
