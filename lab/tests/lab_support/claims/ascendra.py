"""Loads and results for tests of Ascendra's claims."""

from dataclasses import replace
from functools import cache

from macroserve.core.request import Slo
from macroserve.core.slo_class import SloClass
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import Ordering
from macroserve.core.tuning import Tuning
from macroserve.sim.hardware.host import Host
from macroserve.workload.class_mix import ClassMix
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.ascendra.cases import CHAT, STARVED, SUMMARIES, Case, experiment

VLLM, SARATHI, ASCENDRA = "prefill-first", "sarathi", "ascendra"
BASELINES = (VLLM, SARATHI)
HELD = {SUMMARIES: (12.5, 60.0), STARVED: (2.5, 100.0)}
"""Rates that Ascendra holds, requests/s, with durations in seconds."""

BEYOND = {CHAT: (20.0, 30.0), SUMMARIES: (20.0, 30.0), STARVED: (3.5, 60.0)}
"""Rates far beyond all goodputs, requests/s, with durations in seconds."""

OVERLOAD = {CHAT: 14.0, STARVED: 3.0}
"""Rates slightly above capacity, requests/s."""

SECONDS = 60.0
MORE_SEATS = Tuning(lp_batch_size=256)
"""LP instances with vLLM's number of seats."""

OWN = STRATEGIES[ASCENDRA]
SHORTEST_FIRST = replace(OWN, ordering=Ordering.SJF)
SLOW_HOST = Host(step_s=15e-3, sequence_s=5e-4)
HALF_LOOSE = ClassMix((SloClass(name="loose", slo=Slo(30.0, 4.5), share=0.5),))
"""Half of the requests have targets thirty times as loose."""


def small_cache(found: Experiment) -> Experiment:
    """Return the experiment with a quarter of the cache.

    The paper gives a token of Mistral-7B 512 KB, four times what its grouped heads need.
    """
    cluster = found.scenario.cluster
    kv_bytes = cluster.num_kv_tokens * cluster.shape.kv_bytes_per_token / 4
    return with_cluster(found, kv_bytes=kv_bytes)


def twice_the_compute(found: Experiment) -> Experiment:
    """Return the experiment on devices with twice the operations per second."""
    device = found.scenario.cluster.device
    roof = replace(device.roof, flops_per_s=2 * device.roof.flops_per_s)
    return with_cluster(found, device=replace(device, roof=roof))


def slow_host(found: Experiment) -> Experiment:
    """Return the experiment with a slow host."""
    return with_cluster(found, host=SLOW_HOST)


def with_cluster(found: Experiment, **changes: object) -> Experiment:
    cluster = replace(found.scenario.cluster, **changes)
    return replace(found, scenario=replace(found.scenario, cluster=cluster))


def more_seats(found: Experiment) -> Experiment:
    return replace(found, scenario=replace(found.scenario, tuning=MORE_SEATS))


def within(found: Experiment, rate: float, duration_s: float = SECONDS) -> float:
    return found.serve(rate, duration_s).attainment


@cache
def attainment(case: Case, name: str, rate: float, duration_s: float = SECONDS) -> float:
    return within(experiment(case, STRATEGIES[name]), rate, duration_s)


def stricter(case: Case, ttft_scale: float, tpot_scale: float) -> Case:
    return replace(case, slo=Slo(case.slo.ttft_s * ttft_scale, case.slo.tpot_s * tpot_scale))


@cache
def dropping(case: Case, name: str, rate: float) -> float:
    """Return the attainment with requests dropped when they are late."""
    return within(experiment(case, STRATEGIES[name], drop_late=True), rate)
