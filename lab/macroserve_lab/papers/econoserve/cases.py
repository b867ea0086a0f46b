"""EconoServe's setup (section 4): models on A100s of 80 GB, traces, systems."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from macroserve.core.request import Slo
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import Strategy
from macroserve.sim.hardware import models
from macroserve.sim.hardware.devices import A100_80GB
from macroserve.sim.hardware.links import ETHERNET_100G, NVLINK_3
from macroserve.sim.hardware.step_time import StepTime
from macroserve.sim.results import SloRule, as_client
from macroserve.sim.scenario import ClusterSpec, Scenario
from macroserve.workload.datasets import WORKLOADS
from macroserve_lab.disaggregation.scenario import DISTSERVE as DISTSERVE_IN_NODES
from macroserve_lab.disaggregation.scenario import Disaggregated, DisaggregatedScenario
from macroserve_lab.disaggregation.topology import Topology, Transfer
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.econoserve.coupled import multires_batch, sync_coupled_batch
from macroserve_lab.papers.econoserve.preemptive import fastserve_batch, srtf_batch

SERVED = Slo(1e6, 1e6)
"""Targets that every request meets."""

SCALE = 2.0
"""The paper's SLO-scale: maximum completion time relative to an idle instance (section 4.1)."""

BLOCK_SIZE = 32
MAX_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the paper's experiments.

    ranks: devices of the one instance.
    kv_bytes: size of the instance's cache (section 4); None for the memory that is left.
    batch_size: requests that ORCA and FastServe run at once (sections 2.1 and 4).
    """

    name: str
    ranks: int
    kv_bytes: float | None
    batch_size: int = 8


MODELS = (Model("OPT-13B", 1, 12e9), Model("Llama-33B", 2, 19.2e9), Model("OPT-175B", 8, 264e9, 16))


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace of the paper's experiments.

    accuracy: accuracy of the paper's predictor of lengths, with padding (section 4.1).
    over_vllm: range of the paper's rate divided by vLLM's.
    over_sarathi: range of the paper's rate divided by Sarathi's.
    over_distserve: range of the paper's rate divided by that of DistServe on twice the devices.
    over_orca: range of the paper's rate divided by ORCA's.
    """

    workload: str
    duration_s: float
    lowest: float
    accuracy: float
    over_vllm: tuple[float, float]
    over_sarathi: tuple[float, float]
    over_distserve: tuple[float, float]
    over_orca: tuple[float, float]


TRACES = (
    Trace("Alpaca", 60.0, 1.0, 0.775, (1.13, 2.14), (1.2, 1.24), (1.1, 1.13), (5.6, 9.0)),
    Trace(
        "ShareGPT, vLLM's", 120.0, 0.25, 0.732, (2.5, 4.0), (1.25, 2.25), (1.01, 1.33), (22.0, 64.0)
    ),
    Trace("BookCorpus", 600.0, 0.02, 0.698, (2.5, 2.8), (1.88, 2.33), (1.01, 1.25), (12.5, 13.0)),
)

RATES = {
    "OPT-13B": {"Alpaca": 36.0, "ShareGPT, vLLM's": 2.5, "BookCorpus": 0.28},
    "Llama-33B": {"Alpaca": 20.0, "ShareGPT, vLLM's": 1.5, "BookCorpus": 0.2},
    "OPT-175B": {"Alpaca": 20.0, "ShareGPT, vLLM's": 5.0, "BookCorpus": 0.5},
}
"""Requests per second of each trace by model, near those held. The paper's are 36, 28 and 1.2; at
the last two the queues would grow without end here, and all systems miss nearly all requests."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A strategy with a predictor of response lengths.

    foresight: share of a trace's lengths that are known beforehand, see ``Experiment``.
    orders_by_target: whether requests have the paper's targets, which its ordering alone reads.
    max_allocation: whether each request holds memory for the longest one, and few run at once. The
        paper bounds ORCA and FastServe by ``Model.batch_size`` too, and not SRTF, whose memory is
        full before.
    """

    strategy: Strategy
    foresight: Callable[[Trace], float | None] = lambda trace: None
    orders_by_target: bool = False
    max_allocation: bool = False


def _papers_predictor(trace: Trace) -> float:
    return trace.accuracy


def _oracle(trace: Trace) -> float:
    return 1.0


ECONOSERVE = STRATEGIES["econoserve"]
WITH_ALL = Variant(ECONOSERVE, _papers_predictor, orders_by_target=True)
NO_LENDING = replace(WITH_ALL, strategy=replace(ECONOSERVE, kv_lending=False))
VARIANTS = {
    "prefill-first": Variant(STRATEGIES["prefill-first"]),
    "sarathi": Variant(STRATEGIES["sarathi"]),
    "econoserve": WITH_ALL,
    "econoserve, no lending": NO_LENDING,
    "econoserve, an oracle": Variant(ECONOSERVE, _oracle, orders_by_target=True),
    "econoserve, from prompts alike": Variant(ECONOSERVE, orders_by_target=True),
    "unified": Variant(STRATEGIES["unified"]),
}

ORCA = Variant(STRATEGIES["vllm"], max_allocation=True)
"""ORCA, whose batches mix prompts and responses as they come."""

SRTF = replace(ORCA, strategy=replace(ORCA.strategy, name="srtf", batch=srtf_batch))
FASTSERVE = replace(ORCA, strategy=replace(ORCA.strategy, name="fastserve", batch=fastserve_batch))
"""The preemptive baselines of the paper's motivation (section 2.1)."""

MULTIRES = Variant(
    replace(STRATEGIES["sarathi"], name="multires", batch=multires_batch, exact_kv=True),
    _papers_predictor,
)
SYNC_COUPLED = replace(
    MULTIRES, strategy=replace(MULTIRES.strategy, name="sync-coupled", batch=sync_coupled_batch)
)
"""The baselines that reserve memory for prompt and response together (sections 2.1 and 2.2)."""

DISTSERVE = Variant(replace(DISTSERVE_IN_NODES, transfer=Transfer.NETWORK))
"""DistServe, which sends caches between machines, half of which prefill (section 2)."""

DEVICES_PER_NODE = 8


def cluster(model: Model, num_instances: int = 1) -> ClusterSpec:
    return ClusterSpec(
        models.MODELS[model.name],
        A100_80GB,
        NVLINK_3,
        model.ranks,
        num_instances,
        model.kv_bytes,
        BLOCK_SIZE,
        MAX_LENGTH,
    )


def topology(model: Model, num_instances: int) -> Topology:
    """Return as few machines as hold the instances, but at least two."""
    per_node = max(1, min(DEVICES_PER_NODE // model.ranks, num_instances // 2))
    return Topology(per_node, NVLINK_3, ETHERNET_100G)


def alone_s(model: Model, trace: Trace) -> tuple[float, float]:
    """Return the mean time of the trace's prompts and tokens on an idle instance, seconds (t_p and
    t_g of section 4.1)."""
    alone, workload = cluster(model), WORKLOADS[trace.workload]
    step_time = StepTime(alone.shape, alone.device, alone.link, alone.host)
    num_prompt, num_output = round(workload.prompt.mean), round(workload.output.mean)
    prompt_s = step_time.seconds([(num_prompt, 0)], 0, 0)
    return prompt_s, step_time.seconds([], 1, num_prompt + num_output // 2)


def targets(model: Model, trace: Trace, scale: float = SCALE) -> Slo:
    """Return the targets whose sum over prompt and tokens is the paper's for the completion."""
    prompt_s, token_s = alone_s(model, trace)
    return Slo(scale * prompt_s, scale * token_s)


def experiment(
    model: Model,
    trace: Trace,
    variant: Variant,
    num_instances: int | None = None,
    slo_rule: SloRule = as_client,
) -> Experiment:
    """Return an experiment on one instance by default. Where the strategy separates prefills, it is
    on two by default, and half of the instances prefill."""
    strategy = variant.strategy
    num_instances = num_instances or (2 if isinstance(strategy, Disaggregated) else 1)
    spec = cluster(model, num_instances)
    if variant.max_allocation:
        # Reserved for its longest, a request never runs out of memory: seats bound them alone.
        most = min(model.batch_size, spec.num_kv_tokens // MAX_LENGTH)
        spec = replace(spec, max_num_seqs=most)
    slo = targets(model, trace) if variant.orders_by_target else SERVED
    if isinstance(strategy, Disaggregated):
        machines = topology(model, num_instances)
        scenario = DisaggregatedScenario(
            spec, strategy, slo, slo_rule, high_priority_ratio=0.5, topology=machines
        )
    else:
        scenario = Scenario(spec, strategy, slo, slo_rule)
    return Experiment(scenario, WORKLOADS[trace.workload], foresight=variant.foresight(trace))
