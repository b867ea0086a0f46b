"""Check that a number of instances would keep the latency targets, before any instance is
removed."""

from dataclasses import dataclass
from math import ceil
from random import Random

from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.slo_class import SloClass
from macroserve.sim.capacity.traffic import Traffic
from macroserve.sim.instance import FixedLatencyModel, InstanceSpec
from macroserve.sim.results import StopRule
from macroserve.sim.simulation import single_cell

MAX_SHARE = 3
"""Largest number of simulated instances, which get their share of the requests."""

MIN_REQUESTS = 100
"""Traffic is repeated until about as many requests count."""

MAX_ITERATIONS = 5000
"""Bound on the iterations of all instances of one simulation together; about a second."""


@dataclass(frozen=True, slots=True)
class InstanceModel:
    """An instance model describes the instances of a deployment and how they form cells."""

    config: InstanceConfig
    latency: FixedLatencyModel
    """Latency model, fitted while serving and taken for the truth."""
    high_priority_ratio: float
    max_cell: int
    """Maximum number of instances in a cell."""
    slo_classes: tuple[SloClass, ...] = ()
    """SLO classes besides the default one."""
    goal: float = 0.9
    """Share of the default class's requests that should meet their targets."""


@dataclass(frozen=True, slots=True)
class AttainmentEstimate:
    """An estimate is the attainment of a simulation, see ``RunResult.worst_attainment``."""

    attainment: float
    certain: bool
    """True if the simulation came to its end, or far enough to miss the goal for sure."""


def attainment(
    instance_model: InstanceModel,
    traffic: Traffic,
    num_instances: int,
    goal: float = 0.0,
    seed: int = 0,
) -> AttainmentEstimate:
    """Return the share of the requests of ``traffic`` that ``num_instances`` serve within their
    targets; of several SLO classes, that of the class that is worst off.

    goal: if not zero, the simulation only finds whether the goal is reached: an attainment below
        the goal may be less than the true one.

    The same arguments give the same estimate.
    """
    num_cells = ceil(num_instances / instance_model.max_cell)
    num_simulated = min(ceil(num_instances / num_cells), MAX_SHARE)
    share = num_simulated / num_instances
    num_rounds = ceil(MIN_REQUESTS / (share * traffic.num_expected))
    classes = instance_model.slo_classes
    arrivals, num_before = traffic.arrivals(share, num_rounds, Random(seed), classes)
    spec = InstanceSpec.known(instance_model.config, instance_model.latency)
    cell = single_cell(spec, num_simulated, instance_model.high_priority_ratio)
    # Which of several classes misses its goal is known at the end.
    stop = StopRule(goal=0.0 if classes else goal)
    outcome = cell.serve(arrivals, num_before=num_before, stop=stop, max_iterations=MAX_ITERATIONS)
    return AttainmentEstimate(
        outcome.worst_attainment(classes, instance_model.goal), outcome.decided
    )
