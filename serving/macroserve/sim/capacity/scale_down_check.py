"""Attainment of a number of instances, simulated before any instance is removed."""

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
"""Maximum number of simulated instances, which get their share of the requests."""

MIN_REQUESTS = 100
"""Approximate minimum of requests that count; traffic is repeated to reach it."""

MAX_ITERATIONS = 5000
"""Maximum iterations of all instances in one simulation: about a second."""


@dataclass(frozen=True, slots=True)
class InstanceModel:
    """Instances of a deployment and their division into cells."""

    config: InstanceConfig
    latency: FixedLatencyModel
    """Latency model fitted while serving, assumed to be exact."""
    high_priority_ratio: float
    max_cell: int
    """Maximum number of instances in a cell."""
    slo_classes: tuple[SloClass, ...] = ()
    """SLO classes except the default one."""
    goal: float = 0.9
    """Target attainment of the default class."""


@dataclass(frozen=True, slots=True)
class AttainmentEstimate:
    attainment: float
    """Attainment of a simulation, see ``RunResult.worst_attainment``."""
    certain: bool
    """Whether the simulation ended, or got far enough to miss the goal for sure."""


def attainment(
    instance_model: InstanceModel,
    traffic: Traffic,
    num_instances: int,
    goal: float = 0.0,
    seed: int = 0,
) -> AttainmentEstimate:
    """Return the share of requests that ``num_instances`` serve within their targets, in the worst
    of several SLO classes.

    goal: if not zero, the simulation only decides whether the goal is reached, and an attainment
        below the goal may be lower than the true one.

    Equal arguments give equal estimates.
    """
    num_cells = ceil(num_instances / instance_model.max_cell)
    num_simulated = min(ceil(num_instances / num_cells), MAX_SHARE)
    share = num_simulated / num_instances
    num_rounds = ceil(MIN_REQUESTS / (share * traffic.num_expected))
    classes = instance_model.slo_classes
    arrivals, num_before = traffic.arrivals(share, num_rounds, Random(seed), classes)
    spec = InstanceSpec.known(instance_model.config, instance_model.latency)
    cell = single_cell(spec, num_simulated, instance_model.high_priority_ratio)
    # Goals of several classes are checked at the end.
    stop = StopRule(goal=0.0 if classes else goal)
    outcome = cell.serve(arrivals, num_before=num_before, stop=stop, max_iterations=MAX_ITERATIONS)
    return AttainmentEstimate(
        outcome.worst_attainment(classes, instance_model.goal), outcome.decided
    )
