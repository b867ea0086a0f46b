"""Loads and results for tests of EconoServe's claims."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from macroserve.sim.hardware.links import ETHERNET_10G
from macroserve.sim.results import AT_END, RunResult
from macroserve_lab.disaggregation.scenario import DisaggregatedScenario
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.econoserve import figures
from macroserve_lab.papers.econoserve.cases import (
    MODELS,
    TRACES,
    VARIANTS,
    experiment,
)

OPT_13B = MODELS[0]

ALPACA, SHARE_GPT, BOOK_CORPUS = TRACES
BY_NAME = {"Alpaca": ALPACA, "ShareGPT": SHARE_GPT, "BookCorpus": BOOK_CORPUS}
BEYOND = {"Alpaca": (50.0, 20.0), "ShareGPT": (4.0, 60.0), "BookCorpus": (0.4, 200.0)}
"""Rates near the goodputs, requests/s, with durations in seconds."""

MORE_MEMORY = {"ShareGPT": (36e9, 9.0, 20.0), "BookCorpus": (24e9, 0.9, 60.0)}
"""A larger cache than the paper's 12 GB, in bytes, with a rate and a duration in seconds."""

LONG = ("ShareGPT", "BookCorpus")
BASELINES = ("prefill-first", "sarathi")
ABLATED = VARIANTS | figures.ABLATED

Served = Callable[[str, str], RunResult]


@cache
def served(name: str, variant: str) -> RunResult:
    """Return the result near the rates held, with the paper's cache of 12 GB."""
    rate, duration_s = BEYOND[name]
    trace = BY_NAME[name]
    rule = figures.Completed.of(OPT_13B, trace)
    found = experiment(OPT_13B, trace, ABLATED[variant], slo_rule=rule)
    return found.serve(rate, duration_s, stop=AT_END)


@cache
def served_with_more_memory(name: str, variant: str) -> RunResult:
    """Return the result near the rates held with a larger cache."""
    kv_bytes, rate, duration_s = MORE_MEMORY[name]
    found = experiment(OPT_13B, BY_NAME[name], ABLATED[variant])
    cluster = replace(found.scenario.cluster, kv_bytes=kv_bytes)
    scenario = replace(found.scenario, cluster=cluster)
    return replace(found, scenario=scenario).serve(rate, duration_s, stop=AT_END)


def over_network(found: Experiment, gigabits_per_s: float) -> Experiment:
    """Return the experiment with another network between the machines."""
    scenario = found.scenario
    assert isinstance(scenario, DisaggregatedScenario)
    bytes_per_s = gigabits_per_s / 10 * ETHERNET_10G.bytes_per_s
    network = replace(ETHERNET_10G, bytes_per_s=bytes_per_s)
    topology = replace(scenario.topology, network=network)
    return replace(found, scenario=replace(scenario, topology=topology))


def with_less_compute(found: Experiment) -> Experiment:
    """Return the experiment on devices with a quarter of the operations per second."""
    cluster = found.scenario.cluster
    roof = cluster.device.roof
    device = replace(cluster.device, roof=replace(roof, flops_per_s=roof.flops_per_s / 4))
    return replace(found, scenario=replace(found.scenario, cluster=replace(cluster, device=device)))
