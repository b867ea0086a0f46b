"""Loads and results for tests of EcoServe's claims."""

from dataclasses import replace
from functools import cache

from macroserve.core.routing.policies import least_load_route
from macroserve.core.scheduler.batching.baselines import mixed_batch, prefill_first_batch
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import Strategy
from macroserve.sim.hardware.links import PCIE_4, Link
from macroserve.sim.scenario import ClusterSpec
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.ecoserve.cases import Case, experiments

LLAMA, CODE_LLAMA = "Llama-30B", "CodeLlama-34B"
BASELINES = ("prefill-first", "sarathi", "distserve", "mooncake")
HELD = {LLAMA: 7.0, CODE_LLAMA: 8.0}
"""Rates of LongBench that EcoServe holds, requests/s."""

BEYOND = 35.0
"""A rate of ShareGPT near the goodputs with CodeLlama, requests/s."""

SECONDS = 20.0
ECOSERVE = STRATEGIES["ecoserve"]
NO_ROLLING = replace(ECOSERVE, route=least_load_route, takes_turns=False)
MIXED = replace(ECOSERVE, batch=mixed_batch)
UNPAID = replace(ECOSERVE, batch=prefill_first_batch)
"""Strategy whose prefills do not wait for saved time."""


@cache
def attainment(
    model: str, workload: str, rate: float, variant: str, num_instances: int | None = None
) -> float:
    """Return the attainment with the best share of the instances that prefill."""
    found = experiments(Case("L20", model, workload), variant, num_instances)
    return max(each.serve(rate, SECONDS).attainment for each in found)


def with_strategy(model: str, workload: str, rate: float, strategy: Strategy) -> float:
    """Return the attainment of EcoServe with other policies."""
    (found,) = experiments(Case("L20", model, workload), "ecoserve")
    scenario = replace(found.scenario, strategy=strategy)
    return replace(found, scenario=scenario).serve(rate, SECONDS).attainment


def with_cluster(experiment: Experiment, cluster: ClusterSpec) -> Experiment:
    return replace(experiment, scenario=replace(experiment.scenario, cluster=cluster))


def pcie(factor: float) -> Link:
    """Return the link between devices with a multiple of its bandwidth."""
    return replace(PCIE_4, bytes_per_s=factor * PCIE_4.bytes_per_s)
