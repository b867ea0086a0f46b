"""Measure the simulator's speed and memory, and Apt-Serve's decisions compared to the paper's."""

import resource
import sys
from random import Random
from time import process_time

from macroserve.core.request import Slo
from macroserve.core.strategies import STRATEGIES
from macroserve.sim.hardware.devices import L20
from macroserve.sim.hardware.links import PCIE_4
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.scenario import ClusterSpec, Scenario
from macroserve.workload.datasets import WORKLOADS
from macroserve_lab.arrivals import bursty
from macroserve_lab.bench import scheduler

NUM_INSTANCES = 32
RATE = 100.0
"""Requests per second, about three quarters of the instances' capacity."""

SIZES = (10_000, 100_000, 1_000_000)

TABLE_6_MS = {50: 0.3, 100: 0.5, 200: 1.0, 400: 2.1, 800: 4.8, 1600: 10.8}
"""Milliseconds of one of Apt-Serve's decisions by number of candidates (section 6.6)."""


def measure() -> dict[str, float]:
    """Return the processor time and peak memory of simulations of 10,000, 100,000 and a million
    requests, and the time of ``aptserve``'s decisions, also as a share of the paper's."""
    figures: dict[str, float] = {}
    for num_requests in SIZES:
        took_s = _simulation_s(num_requests)
        figures[f"sim.{num_requests}_s"] = took_s
        figures[f"sim.{num_requests}_ms_each"] = 1e3 * took_s / num_requests
    # In KiB on Linux, in bytes elsewhere.
    unit = 2**10 if sys.platform == "linux" else 1
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    figures["sim.peak_mb"] = peak_bytes / 1e6
    decisions = scheduler.measure(tuple(TABLE_6_MS), "aptserve")
    for (size, paper_ms), ours_ms in zip(TABLE_6_MS.items(), decisions.values(), strict=True):
        figures[f"sim.aptserve_{size}_ms"] = ours_ms
        figures[f"sim.aptserve_{size}_of_paper"] = ours_ms / paper_ms
    return figures


def _simulation_s(num_requests: int) -> float:
    cluster = ClusterSpec(MODELS["Llama-30B"], L20, PCIE_4, 4, NUM_INSTANCES)
    scenario = Scenario(cluster, STRATEGIES["unified"], Slo(5.0, 0.1))
    random = Random(0)
    lengths = WORKLOADS["ShareGPT"].lengths(random)
    arrivals = bursty(RATE, 1.0, 1.01 * num_requests / RATE, lengths, random)[:num_requests]
    started_s = process_time()
    scenario.serve(arrivals)
    return process_time() - started_s
