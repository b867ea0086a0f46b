"""Ascendra's setup (section 8.2): three models, each on three A100s of 80 GB."""

from dataclasses import dataclass

from macroserve.core.request import Slo
from macroserve.core.status import Pool
from macroserve.core.strategy import Strategy
from macroserve.sim.hardware.devices import A100_80GB
from macroserve.sim.hardware.links import NVLINK_3
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.router import cell_pools
from macroserve.sim.scenario import ClusterSpec, Scenario
from macroserve.workload.datasets import WORKLOADS
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.measurements import Goodput

LEVEL = 0.9
DURATION_S = 300.0
LOWEST = 0.2


@dataclass(frozen=True, slots=True)
class Case:
    """A model of table 2 on a data set, with their targets."""

    model: str
    workload: str
    slo: Slo

    @property
    def name(self) -> str:
        return f"{self.model}, {self.workload}"


CHAT = Case("Mistral-7B", "ShareGPT4", Slo(1.0, 0.15))
SUMMARIES = Case("Llama3.1-8B", "LongBench", Slo(2.5, 0.15))
STARVED = Case("Qwen-14B", "ShareGPT4", Slo(1.5, 0.15))
CASES = (CHAT, SUMMARIES, STARVED)
APPENDED = (
    Case("Mistral-7B", "LongBench", Slo(2.5, 0.15)),
    Case("Llama3.1-8B", "ShareGPT4", Slo(1.0, 0.15)),
    Case("Qwen-14B", "LongBench", Slo(3.0, 0.15)),
)
"""The other pairs of a model and a data set (appendix A.5)."""

STRATEGY_NAMES = ("prefill-first", "sarathi", "ascendra", "unified")


def experiment(
    case: Case,
    strategy: Strategy,
    ratio: float | None = None,
    num_instances: int = 3,
    *,
    drop_late: bool = False,
) -> Experiment:
    """Return the experiment of `case` on `num_instances`, of which `ratio` (by default the
    strategy's) are HP."""
    scenario = Scenario(
        ClusterSpec(MODELS[case.model], A100_80GB, NVLINK_3, 1, num_instances),
        strategy,
        case.slo,
        high_priority_ratio=strategy.high_priority_ratio if ratio is None else ratio,
        drop_late=drop_late,
    )
    return Experiment(scenario, WORKLOADS[case.workload])


def pools_of(experiment: Experiment) -> dict[str, Pool]:
    """Return the pool of each instance of `experiment`, by name."""
    scenario = experiment.scenario
    pools = cell_pools(scenario.cluster.num_instances, scenario.high_priority_ratio)
    return {f"instance-{index}": pool for index, pool in enumerate(pools)}


def goodput(key: str, experiment: Experiment) -> Goodput:
    """Return the measurement of the rate at which nine in ten of `experiment`'s requests are in
    time."""
    return Goodput(key, experiment, LEVEL, DURATION_S, LOWEST)
