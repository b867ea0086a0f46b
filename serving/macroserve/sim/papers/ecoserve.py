"""EcoServe, section 4: goodput of PaDG against NoDG, on two clusters of commodity links."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean

from macroserve.core.request import Slo
from macroserve.core.strategy import STRATEGIES, Strategy, Transfer, strategy
from macroserve.sim.deployment import Deployment
from macroserve.sim.experiment import Experiment
from macroserve.sim.fabric import Fabric
from macroserve.sim.hardware import models
from macroserve.sim.hardware.devices import A800, L20, Device
from macroserve.sim.hardware.links import ETHERNET_10G, PCIE_4, ROCE_25G, Link
from macroserve.sim.papers.measure import Figure, Goodput, Measurement, Row, Values
from macroserve.sim.record import Judge, as_client, as_ecoserve
from macroserve.sim.setup import Setup
from macroserve.sim.workloads import WORKLOADS


@dataclass(frozen=True, slots=True)
class Cluster:
    """num_devices: those that one model runs on. ranks: of an instance, by model.
    network: what joins its nodes."""

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
SLOS = {
    "Alpaca-gpt4": Slo(1.0, 0.1),
    "ShareGPT": Slo(5.0, 0.1),
    "LongBench": Slo(15.0, 0.1),
}
LEVELS = {"P90": 0.9, "P50": 0.5}
DURATION_S = {"Alpaca-gpt4": 60.0, "ShareGPT": 90.0, "LongBench": 180.0}
LOWEST = {"Alpaca-gpt4": 4.0, "ShareGPT": 2.0, "LongBench": 0.3}
"""Rates at which to begin."""

NODG = ("vllm", "sarathi")
FUDG = ("distserve", "mooncake")
STRATEGY_NAMES = (*NODG, *FUDG, "ecoserve")
PREFILL_RATIOS = (0.25, 0.5, 0.75)
"""Shares of the instances that prefill, of which the best counts."""
VARIANTS: dict[str, tuple[Strategy, Judge]] = {
    **{name: (strategy(name), as_ecoserve) for name in STRATEGY_NAMES},
    "ecoserve, tenth percentile": (
        replace(STRATEGIES["ecoserve"], mean_slack=False),
        as_ecoserve,
    ),
    "ecoserve, as a client counts": (STRATEGIES["ecoserve"], as_client),
    "unified": (STRATEGIES["unified"], as_client),
}
"""The paper's own, and what it would be with the time per token counted from the first token."""

GAINS = {
    "P90": {"vllm": 83.76, "sarathi": 71.97, "distserve": 192.41, "mooncake": 218.22},
    "P50": {"vllm": 36.49, "sarathi": 19.82, "distserve": 180.73, "mooncake": 194.62},
}
"""Section 4.2: percent, averaged over all cases."""

GAINS_BY_MODEL = {
    "Llama-30B": (65.00, 507.67),
    "CodeLlama-34B": (83.30, 125.45),
    "Qwen2-72B": (85.30, 83.61),
}
GAINS_BY_CLUSTER = {"L20": (84.33, 124.86), "A800": (71.41, 285.78)}
GAINS_BY_SET = {
    "Alpaca-gpt4": (10.44, 74.80),
    "ShareGPT": (20.60, 363.10),
    "LongBench": (202.57, 164.42),
}
"""P90, over the average of both NoDG systems, and of both FuDG systems."""


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


def measurements() -> list[Measurement]:
    """Goodput of all cases: those of P90 first."""
    return [
        _goodput(case, level, variant)
        for level in LEVELS
        for case in CASES
        for variant in (VARIANTS if level == "P90" else STRATEGY_NAMES)
    ]


def _goodput(case: Case, level: str, variant: str) -> Goodput:
    return Goodput(
        case.key(level, variant),
        experiments(case, variant),
        LEVELS[level],
        DURATION_S[case.workload],
        LOWEST[case.workload],
    )


def experiments(
    case: Case, variant: str, num_instances: int | None = None
) -> tuple[Experiment, ...]:
    """Those of which the best counts. num_instances: instead of as many as there is room for."""
    cluster = next(cluster for cluster in CLUSTERS if cluster.name == case.cluster)
    strategy, judge = VARIANTS[variant]
    ranks = cluster.ranks[case.model]
    if strategy.transfer is Transfer.NODE:
        ranks = min(ranks, DEVICES_PER_NODE // 2)
    per_node = DEVICES_PER_NODE // ranks
    num_instances = num_instances or cluster.num_devices // ranks
    fabric = Fabric(per_node, PCIE_4, cluster.network)
    ratios = (strategy.high_priority_ratio,)
    if strategy.moves_kv:
        reach = per_node if strategy.transfer is Transfer.NODE else num_instances
        ratios = PREFILL_RATIOS if reach > 2 else (0.5,)
    return tuple(
        Experiment(
            Setup(
                Deployment(
                    models.MODELS[case.model],
                    cluster.device,
                    PCIE_4,
                    ranks,
                    num_instances,
                    fabric=fabric,
                ),
                strategy,
                SLOS[case.workload],
                judge,
                high_priority_ratio=ratio,
            ),
            WORKLOADS[case.workload],
        )
        for ratio in ratios
    )


def rows(values: Values) -> list[Row]:
    """The paper's averages beside ours, then each case."""
    found = [
        Row(
            "goodput",
            f"{level}, all cases",
            f"ecoserve over {baseline}",
            "gain in %",
            _mean_gain(values, CASES, (baseline,), level),
            paper,
        )
        for level, gains in GAINS.items()
        for baseline, paper in gains.items()
    ]
    for name, gains in (
        ("model", GAINS_BY_MODEL),
        ("cluster", GAINS_BY_CLUSTER),
        ("workload", GAINS_BY_SET),
    ):
        for group, papers in gains.items():
            cases = [case for case in CASES if getattr(case, name) == group]
            found += [
                Row(
                    "goodput",
                    f"P90, {group}",
                    f"ecoserve over {kind}",
                    "gain in %",
                    _mean_gain(values, cases, baselines),
                    paper,
                )
                for kind, baselines, paper in zip(
                    ("NoDG", "FuDG"), (NODG, FUDG), papers, strict=True
                )
            ]
    return found + [
        Row(
            "goodput",
            f"{level}, {case.cluster}, {case.model}, {case.workload}",
            variant,
            "requests/s",
            values[case.key(level, variant)],
        )
        for level in LEVELS
        for case in CASES
        for variant in VARIANTS
        if case.key(level, variant) in values
    ]


def _mean_gain(
    values: Values, cases: Iterable[Case], baselines: Iterable[str], level: str = "P90"
) -> float:
    pairs = product(cases, baselines)
    return mean(_gain(values, case, level, baseline) for case, baseline in pairs)


def _gain(values: Values, case: Case, level: str, baseline: str) -> float:
    """Percent. What does not reach the lowest rate tried is taken for that rate."""
    ours, theirs = (
        max(values[case.key(level, name)], LOWEST[case.workload]) for name in ("ecoserve", baseline)
    )
    return 100 * (ours / theirs - 1)


GROWN = Case("L20", "CodeLlama-34B", "ShareGPT")
SIZES = (1, 2, 4, 8)
GAIN_OF_FOUR = 5.6
"""Section 4.3: what four instances serve, times what one serves."""


def scaling_measurements() -> list[Measurement]:
    """Goodput of more and more instances under one cell scheduler."""
    return [
        Goodput(
            _scaling_key(variant, size),
            experiments(GROWN, variant, size),
            LEVELS["P90"],
            DURATION_S[GROWN.workload],
            LOWEST[GROWN.workload] / 4,
        )
        for variant in ("ecoserve", "vllm")
        for size in SIZES
    ]


def scaling_rows(values: Values) -> list[Row]:
    alone = values[_scaling_key("ecoserve", 1)]
    four = values[_scaling_key("ecoserve", 4)]
    name = "static scaling"
    gain = Row(name, "4 instances over 1", "ecoserve", "times", four / alone, GAIN_OF_FOUR)
    return [gain] + [
        Row(name, f"{size} instances", variant, "requests/s", values[_scaling_key(variant, size)])
        for variant in ("ecoserve", "vllm")
        for size in SIZES
    ]


def _scaling_key(variant: str, size: int) -> str:
    return f"static scaling {variant} {size}"


FIGURES = {
    "goodput": Figure(measurements, rows),
    "static-scaling": Figure(scaling_measurements, scaling_rows),
}
