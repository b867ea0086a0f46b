"""Loads and results for tests of EconoServe's motivation's claims."""

from dataclasses import replace
from functools import cache

from macroserve.sim.results import AT_END, RunResult
from macroserve_lab.papers.econoserve.cases import MODELS, TRACES
from macroserve_lab.papers.econoserve.figures import KNOWING

OPT_13B, SHARE_GPT = MODELS[0], TRACES[1]

VLLM = "prefill-first"


@cache
def served(name: str, rate: float = 4.0, flops_share: float = 1.0) -> RunResult:
    """Return the result of 20 s, on devices with ``flops_share`` of the operations per second."""
    found = KNOWING[SHARE_GPT, name].experiment
    cluster = found.scenario.cluster
    roof = replace(cluster.device.roof, flops_per_s=flops_share * cluster.device.roof.flops_per_s)
    cluster = replace(cluster, device=replace(cluster.device, roof=roof))
    scenario = replace(found.scenario, cluster=cluster)
    return replace(found, scenario=scenario).serve(rate, 20.0, stop=AT_END)
