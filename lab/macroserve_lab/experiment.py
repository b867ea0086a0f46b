"""Experiments: a workload in a scenario, with attainment at a rate, and goodput."""

from dataclasses import dataclass
from random import Random

import numpy as np

from macroserve.sim.results import WHEN_DECIDED, RunResult, StopRule
from macroserve.sim.scenario import Scenario
from macroserve.sim.simulation_trace import SimulationTrace
from macroserve.workload.arrivals import Arrival
from macroserve.workload.class_mix import ONE_CLASS, ClassMix
from macroserve.workload.datasets import Workload
from macroserve.workload.shared_prefix import SharedPrefix
from macroserve_lab.arrivals import bursty, foreseen
from macroserve_lab.goodput import goodput

WARM_UP_S = 30.0
"""Seconds of requests before those that count."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A workload in a scenario, at any rate."""

    scenario: Scenario
    workload: Workload
    variation: float = 1.0
    """Coefficient of variation of the gaps between arrivals; 1 is a Poisson process."""
    foresight: float | None = None
    """Share of the requests with known output lengths (``arrivals.foreseen``); None if
    lengths are predicted from earlier requests."""
    shared: SharedPrefix | None = None
    """Shared prefixes, before the workload's prompts."""
    classes: ClassMix = ONE_CLASS
    """SLO classes of the requests."""

    def serve(
        self,
        rate: float,
        duration_s: float,
        *,
        stop: StopRule = WHEN_DECIDED,
        seed: int = 0,
        trace: SimulationTrace | None = None,
    ) -> RunResult:
        """Return the result of ``rate`` requests per second; equal seeds give equal results."""
        arrivals, num_before = self.arrivals(rate, duration_s, seed)
        return self.scenario.serve(
            arrivals, num_before=num_before, stop=stop, seed=seed, trace=trace
        )

    def arrivals(self, rate: float, duration_s: float, seed: int = 0) -> tuple[list[Arrival], int]:
        """Return the arrivals of ``serve``, and the number of the first ones that do not count."""
        random = Random(seed)
        lengths = self.workload.lengths(random)
        arrivals = bursty(rate, self.variation, WARM_UP_S + duration_s, lengths, random)
        if self.foresight is not None:
            arrivals = foreseen(arrivals, self.foresight, random)
        if self.shared is not None:
            arrivals = list(self.shared.applied(iter(arrivals), np.random.default_rng(seed)))
        arrivals = self.classes.applied(arrivals, seed)
        num_before = sum(arrival.at_s < WARM_UP_S for arrival in arrivals)
        return arrivals, num_before

    def goodput(
        self, level: float, duration_s: float, lowest: float, highest: float, seed: int = 0
    ) -> float:
        """Return the highest rate, in requests per second, at which ``level`` of them attain."""

        def attains(rate: float) -> bool:
            outcome = self.serve(rate, duration_s, stop=StopRule(goal=level), seed=seed)
            return outcome.attainment >= level

        return goodput(attains, lowest, highest)
