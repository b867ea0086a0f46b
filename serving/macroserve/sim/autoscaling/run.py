"""Run of a load on an autoscaled fleet."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from macroserve.core.scaling.autoscale import Limits
from macroserve.core.scaling.fleet import DesiredFleet
from macroserve.core.scaling.mitosis import Bounds
from macroserve.sim.autoscaling.autoscaler import SimulatedAutoscaler
from macroserve.sim.autoscaling.fleet import AutoscaledFleet
from macroserve.sim.autoscaling.goals import Goals
from macroserve.sim.autoscaling.start_up import StartUp
from macroserve.sim.autoscaling.timeline import Timeline
from macroserve.sim.results import AT_END, RunResult
from macroserve.sim.scenario import Scenario
from macroserve.sim.simulation import Simulation
from macroserve.sim.simulation_trace import SimulationTrace
from macroserve.workload.arrivals import Arrival

ONE_CELL = Bounds(1, 1_000)
"""Bounds of a fleet that forms one cell."""


class AutoscaledRun(NamedTuple):
    result: RunResult
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class AutoscaledScenario:
    """A scenario with an autoscaled number of instances, at first that of its cluster."""

    scenario: Scenario
    limits: Limits
    start_up: StartUp
    goals: Goals

    def serve(
        self,
        arrivals: Sequence[Arrival],
        *,
        num_before: int = 0,
        seed: int = 0,
        trace: SimulationTrace | None = None,
    ) -> AutoscaledRun:
        """Serve the arrivals to the last token; the first ``num_before`` do not count.

        seed: seed of the noise of steps and of starts; equal seeds give equal results.
        """
        scenario, limits = self.scenario, self.limits
        spec = scenario.instance_spec(arrivals, seed)
        num = max(limits.least, min(scenario.cluster.num_instances, limits.most))
        desired = DesiredFleet(num, scenario.bounds or ONE_CELL, scenario.high_priority_ratio)
        fleet = AutoscaledFleet(spec, desired, self.start_up, Random(seed))
        autoscaler = SimulatedAutoscaler(
            fleet, spec.config, desired, limits, self.goals, self.start_up.mean_s, scenario.slo_rule
        )
        result = Simulation(fleet, spec.config, control=autoscaler, trace=trace).serve(
            arrivals, num_before=num_before, slo_rule=scenario.slo_rule, stop=AT_END
        )
        return AutoscaledRun(result, autoscaler.timeline(arrivals[-1].at_s))
