"""One setup under one workload: how much of it is within the targets, and at most at which rate."""

from dataclasses import dataclass
from random import Random

from macroserve.sim.goodput import goodput
from macroserve.sim.outcome import DECIDED, Extent, Outcome
from macroserve.sim.setup import Setup
from macroserve.workload.arrivals import bursty, foreseen
from macroserve.workload.datasets import Workload

WARM_UP_S = 30.0
"""Requests of so long come before those that count."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """variation: of the gaps between arrivals; 1 is a Poisson process.
    foresight: share of the requests whose output's length is known beforehand, see
        ``sim.arrivals.foreseen``; None where only the lengths of earlier ones tell."""

    setup: Setup
    workload: Workload
    variation: float = 1.0
    foresight: float | None = None

    def serve(
        self,
        rate: float,
        duration_s: float,
        *,
        extent: Extent = DECIDED,
        seed: int = 0,
    ) -> Outcome:
        """What comes of ``rate`` requests per second. The same seed gives the same outcome."""
        random = Random(seed)
        lengths = self.workload.lengths(random)
        arrivals = bursty(rate, self.variation, WARM_UP_S + duration_s, lengths, random)
        if self.foresight is not None:
            arrivals = foreseen(arrivals, self.foresight, random)
        num_before = sum(arrival.at_s < WARM_UP_S for arrival in arrivals)
        return self.setup.serve(arrivals, num_before=num_before, extent=extent, seed=seed)

    def goodput(
        self, level: float, duration_s: float, lowest: float, highest: float, seed: int = 0
    ) -> float:
        """The most requests per second of which the share ``level`` is within the targets."""

        def attains(rate: float) -> bool:
            outcome = self.serve(rate, duration_s, extent=Extent(goal=level), seed=seed)
            return outcome.attainment >= level

        return goodput(attains, lowest, highest)
