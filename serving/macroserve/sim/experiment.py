"""One setup under one workload: how much of it is within the targets, and at most at which rate."""

from dataclasses import dataclass
from math import inf
from random import Random

from macroserve.sim.arrivals import bursty, foreseen
from macroserve.sim.goodput import goodput
from macroserve.sim.record import Outcome
from macroserve.sim.setup import Setup
from macroserve.sim.workloads import Workload

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
        goal: float = 0.0,
        seed: int = 0,
        to_the_end: bool = False,
        limit_s: float = inf,
    ) -> Outcome:
        """What comes of ``rate`` requests per second. The same seed gives the same outcome.

        goal: if not zero, the run ends as soon as this attainment is out of reach.
        to_the_end: it ends when every request has, with a verdict on each, or once their mean
            normalised latency is above ``limit_s`` for sure.
        """
        random = Random(seed)
        lengths = self.workload.lengths(random)
        arrivals = bursty(rate, self.variation, WARM_UP_S + duration_s, lengths, random)
        if self.foresight is not None:
            arrivals = foreseen(arrivals, self.foresight, random)
        num_before = sum(arrival.at_s < WARM_UP_S for arrival in arrivals)
        return self.setup.serve(
            arrivals,
            num_before=num_before,
            goal=goal,
            seed=seed,
            to_the_end=to_the_end,
            limit_s=limit_s,
        )

    def goodput(
        self, level: float, duration_s: float, lowest: float, highest: float, seed: int = 0
    ) -> float:
        """The most requests per second of which the share ``level`` is within the targets."""

        def attains(rate: float) -> bool:
            outcome = self.serve(rate, duration_s, goal=level, seed=seed)
            return outcome.attainment >= level

        return goodput(attains, lowest, highest)
