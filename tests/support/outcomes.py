"""Print the simulator's outcome of some cases, a line each, with a digest.

Run as a script, with the tested packages on PYTHONPATH.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from random import Random

from macroserve.core.request import Slo
from macroserve.core.scaling.mitosis import Bounds
from macroserve.core.scheduler import scheduler
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import Strategy
from macroserve.sim.hardware.devices import L20
from macroserve.sim.hardware.links import PCIE_4
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.results import StopRule
from macroserve.sim.rival_routing import Routing
from macroserve.sim.scenario import ClusterSpec, Scenario
from macroserve.workload.datasets import WORKLOADS
from macroserve_lab.arrivals import bursty

CELL = ClusterSpec(MODELS["Llama-30B"], L20, PCIE_4, 4, 4)
SLO = Slo(5.0, 0.1)


def scenario(strategy: Strategy) -> Scenario:
    return Scenario(CELL, strategy, SLO, high_priority_ratio=strategy.high_priority_ratio)


def scenarios() -> Iterator[tuple[str, Scenario]]:
    for name, strategy in STRATEGIES.items():
        yield name, scenario(strategy)
    unified = scenario(STRATEGIES["unified"])
    yield "stages", replace(unified, cluster=replace(CELL, ranks=2, stages=2))
    yield "late ones refused", replace(unified, drop_late=True)
    for routing in (Routing.ROUND_ROBIN, Routing.STICKY):
        yield routing.value, replace(unified, routing=routing)
    many = replace(CELL, num_instances=8)
    yield "cells", replace(unified, cluster=many, bounds=Bounds(2, 3))


def main() -> None:
    print(scheduler.__file__)
    random = Random(0)
    arrivals = bursty(16.0, 1.0, 60.0, WORKLOADS["ShareGPT"].lengths(random), random)
    for name, served in scenarios():
        outcome = served.serve(arrivals, stop=StopRule(to_the_end=True))
        print(name, outcome.attainment, hashlib.sha256(repr(outcome).encode()).hexdigest())


if __name__ == "__main__":
    main()
