"""One strategy under one workload: how much of it is within the targets, and up to which rate."""

from dataclasses import dataclass
from random import Random

from macroserve.core.request import Slo
from macroserve.core.strategy import Strategy
from macroserve.sim.arrivals import bursty
from macroserve.sim.cell import SimulatedCell
from macroserve.sim.deployment import CHUNK_TOKENS, Deployment
from macroserve.sim.disaggregated import DisaggregatedCell
from macroserve.sim.goodput import goodput
from macroserve.sim.instance import Engine
from macroserve.sim.record import Judge, Outcome, as_client
from macroserve.sim.workloads import Workload

WARM_UP_S = 30.0
"""Requests of so long come before those that count."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """variation: of the gaps between arrivals; 1 is a Poisson process.
    high_priority_ratio: share of the instances in the HP pool, or that prefill."""

    deployment: Deployment
    strategy: Strategy
    workload: Workload
    slo: Slo
    judge: Judge = as_client
    variation: float = 1.0
    high_priority_ratio: float = 0.0
    chunk_tokens: int = CHUNK_TOKENS
    late_value: float = 0.0
    drop_late: bool = False

    def serve(self, rate: float, duration_s: float, *, goal: float = 0.0, seed: int = 0) -> Outcome:
        """What comes of ``rate`` requests per second. The same seed gives the same outcome.

        goal: if not zero, the run ends as soon as this attainment is out of reach.
        """
        random = Random(seed)
        lengths = self.workload.lengths(random)
        arrivals = bursty(rate, self.variation, WARM_UP_S + duration_s, lengths, random)
        num_before = sum(arrival.at_s < WARM_UP_S for arrival in arrivals)
        engine = self.deployment.engine(
            self.strategy,
            self.slo,
            chunk_tokens=self.chunk_tokens,
            late_value=self.late_value,
            drop_late=self.drop_late,
            seed=seed,
        )
        return self._cell(engine).serve(
            arrivals, num_before=num_before, judge=self.judge, goal=goal
        )

    def _cell(self, engine: Engine) -> SimulatedCell:
        deployment, ratio = self.deployment, self.high_priority_ratio
        if not self.strategy.moves_kv:
            return SimulatedCell(engine, deployment.num_instances, ratio)
        if deployment.fabric is None:
            raise ValueError(f"{self.strategy.name} moves KV caches, and there is nothing between")
        kv_bytes = deployment.shape.kv_bytes_per_token
        return DisaggregatedCell(
            engine, deployment.num_instances, ratio, deployment.fabric, kv_bytes
        )

    def goodput(
        self, level: float, duration_s: float, lowest: float, highest: float, seed: int = 0
    ) -> float:
        """Requests per second up to which the share ``level`` of them is within the targets."""

        def attains(rate: float) -> bool:
            outcome = self.serve(rate, duration_s, goal=level, seed=seed)
            return outcome.attainment >= level

        return goodput(attains, lowest, highest)
