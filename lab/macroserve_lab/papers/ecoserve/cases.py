"""EcoServe's setup (section 4.1): clusters, models, workloads, systems."""

from dataclasses import dataclass, replace
from itertools import product

from macroserve.core.request import Slo
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import Strategy
from macroserve.sim.hardware import models
from macroserve.sim.hardware.devices import A800, L20, Device
from macroserve.sim.hardware.links import ETHERNET_10G, PCIE_4, ROCE_25G, Link
from macroserve.sim.results import SloRule, as_client
from macroserve.sim.scenario import ClusterSpec, Scenario
from macroserve.workload.datasets import WORKLOADS
from macroserve_lab.disaggregation.scenario import (
    DISTSERVE,
    MOONCAKE,
    Disaggregated,
    DisaggregatedScenario,
)
from macroserve_lab.disaggregation.topology import Topology, Transfer
from macroserve_lab.experiment import Experiment
from macroserve_lab.slo_rules import as_ecoserve


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster of the paper's experiments.

    num_devices: devices that one model runs on.
    ranks: devices of an instance, by model.
    network: link that joins the nodes.
    """

    name: str
    device: Device
    num_devices: int
    ranks: dict[str, int]
    network: Link


DEVICES_PER_NODE = 8
CLUSTERS = (
    Cluster("L20", L20, 32, {"Llama-30B": 4, "CodeLlama-34B": 4, "Qwen2-72B": 8}, ETHERNET_10G),
    Cluster("A800", A800, 16, {"Llama-30B": 2, "CodeLlama-34B": 2, "Qwen2-72B": 4}, ROCE_25G),
)
MODELS = ("Llama-30B", "CodeLlama-34B", "Qwen2-72B")
SLOS = {"Alpaca-gpt4": Slo(1.0, 0.1), "ShareGPT": Slo(5.0, 0.1), "LongBench": Slo(15.0, 0.1)}
LEVELS = {"P90": 0.9, "P50": 0.5, "P99": 0.99}
DURATION_S = {"Alpaca-gpt4": 60.0, "ShareGPT": 90.0, "LongBench": 180.0}
LOWEST = {"Alpaca-gpt4": 4.0, "ShareGPT": 2.0, "LongBench": 0.3}
"""Rates in requests per second at which the search begins."""

NODG = ("prefill-first", "sarathi")
FUDG = {each.name: each for each in (DISTSERVE, MOONCAKE)}
STRATEGY_NAMES = (*NODG, *FUDG, "ecoserve")
PREFILL_RATIOS = (0.25, 0.5, 0.75)
"""Shares of the instances that prefill; the best one counts."""
BY_PERCENTILE = "ecoserve, tenth percentile"
"""Variant of EcoServe in which all but a tenth of the decodes have saved the time that prefills
take. The paper takes the mean of the saved times, by which short responses miss their pace."""
VARIANTS: dict[str, tuple[Strategy, SloRule]] = {
    **{name: ((STRATEGIES | FUDG)[name], as_ecoserve) for name in STRATEGY_NAMES},
    BY_PERCENTILE: (replace(STRATEGIES["ecoserve"], mean_slack=False), as_ecoserve),
    "ecoserve, as a client counts": (STRATEGIES["ecoserve"], as_client),
    "unified": (STRATEGIES["unified"], as_client),
}
"""Strategies with their SLO rules: the paper's own, and variants that count the time per token from
the first token."""


@dataclass(frozen=True, slots=True)
class Case:
    cluster: str
    model: str
    workload: str

    def key(self, level: str, variant: str) -> str:
        return f"{level} {self.cluster} {self.model} {self.workload} {variant}"


CASES = [
    Case(cluster.name, model, workload)
    for cluster, model, workload in product(CLUSTERS, MODELS, SLOS)
]


def experiments(
    case: Case, variant: str, num_instances: int | None = None
) -> tuple[Experiment, ...]:
    """Return the experiments of a case; the best one counts.

    num_instances: number of instances in place of as many as the devices hold.
    """
    cluster = next(cluster for cluster in CLUSTERS if cluster.name == case.cluster)
    strategy, slo_rule = VARIANTS[variant]
    workload, ranks = WORKLOADS[case.workload], cluster.ranks[case.model]
    within_node = isinstance(strategy, Disaggregated) and strategy.transfer is Transfer.NODE
    if within_node:
        ranks = min(ranks, DEVICES_PER_NODE // 2)
    per_node = DEVICES_PER_NODE // ranks
    num_instances = num_instances or cluster.num_devices // ranks
    spec = ClusterSpec(models.MODELS[case.model], cluster.device, PCIE_4, ranks, num_instances)
    slo = SLOS[case.workload]
    if not isinstance(strategy, Disaggregated):
        ratio = strategy.high_priority_ratio
        scenario = Scenario(spec, strategy, slo, slo_rule, high_priority_ratio=ratio)
        return (Experiment(scenario, workload),)
    topology = Topology(per_node, PCIE_4, cluster.network)
    reach = per_node if within_node else num_instances
    return tuple(
        Experiment(
            DisaggregatedScenario(
                spec, strategy, slo, slo_rule, high_priority_ratio=ratio, topology=topology
            ),
            workload,
        )
        for ratio in (PREFILL_RATIOS if reach > 2 else (0.5,))
    )


SCALED = Case("L20", "CodeLlama-34B", "ShareGPT")
"""Case that the paper scales and divides into pipelines (sections 4.3 and 4.4)."""
