"""A scenario under a workload: its attainment at a rate, and its goodput."""

from dataclasses import dataclass
from random import Random

from macroserve.sim.goodput import goodput
from macroserve.sim.results import WHEN_DECIDED, RunResult, StopRule
from macroserve.sim.scenario import Scenario
from macroserve.workload.arrivals import bursty, foreseen
from macroserve.workload.datasets import Workload

WARM_UP_S = 30.0
"""Requests of so long come before those that count."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """variation: of the gaps between arrivals; 1 is a Poisson process.
    foresight: share of the requests whose output's length is known beforehand, see
        ``sim.arrivals.foreseen``; None where only the lengths of earlier ones tell."""

    scenario: Scenario
    workload: Workload
    variation: float = 1.0
    foresight: float | None = None

    def serve(
        self,
        rate: float,
        duration_s: float,
        *,
        stop: StopRule = WHEN_DECIDED,
        seed: int = 0,
    ) -> RunResult:
        """What comes of ``rate`` requests per second. The same seed gives the same outcome."""
        random = Random(seed)
        lengths = self.workload.lengths(random)
        arrivals = bursty(rate, self.variation, WARM_UP_S + duration_s, lengths, random)
        if self.foresight is not None:
            arrivals = foreseen(arrivals, self.foresight, random)
        num_before = sum(arrival.at_s < WARM_UP_S for arrival in arrivals)
        return self.scenario.serve(arrivals, num_before=num_before, stop=stop, seed=seed)

    def goodput(
        self, level: float, duration_s: float, lowest: float, highest: float, seed: int = 0
    ) -> float:
        """The most requests per second of which the share ``level`` is within the targets."""

        def attains(rate: float) -> bool:
            outcome = self.serve(rate, duration_s, stop=StopRule(goal=level), seed=seed)
            return outcome.attainment >= level

        return goodput(attains, lowest, highest)
