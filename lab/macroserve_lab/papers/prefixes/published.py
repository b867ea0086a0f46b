"""Published benchmarks of prefix-aware routing, llm-d's and kthena's, with rule after rule."""

from dataclasses import dataclass

from macroserve.core.request import Slo
from macroserve.sim.hardware.devices import A100_80GB, H100
from macroserve.sim.hardware.links import NVLINK_3, NVLINK_4
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.rival_routing import Routing
from macroserve.sim.scenario import ClusterSpec
from macroserve.workload.datasets import Workload
from macroserve.workload.lengths import Lognormal
from macroserve.workload.shared_prefix import SharedPrefix
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.figure import Figure, Row
from macroserve_lab.papers.measurements import Goodput, Values
from macroserve_lab.papers.prefixes.entries import ENTRIES, UNIFIED, scenario
from macroserve_lab.papers.prefixes.held_rate import HeldRate

LEVEL = 0.9
DURATION_S = 120.0


@dataclass(frozen=True, slots=True)
class World:
    """A world is one published benchmark.

    gain: the publisher's throughput with its own prefix-aware routing, over that with its baseline.
    lowest: the lowest rate tried, requests per second.
    """

    cluster: ClusterSpec
    slo: Slo
    shared: SharedPrefix
    workload: Workload
    baseline: str
    gain: float
    lowest: float

    def experiment(self, entry: str) -> Experiment:
        served = scenario(self.cluster, self.slo, entry)
        return Experiment(served, self.workload, shared=self.shared)


def _constant(name: str, num_prompt_tokens: int, num_output_tokens: int) -> Workload:
    return Workload(
        name,
        Lognormal(num_prompt_tokens, num_prompt_tokens),
        Lognormal(num_output_tokens, num_output_tokens),
    )


WORLDS = {
    "llm-d": World(
        ClusterSpec(
            MODELS["Qwen3-32B"], H100, NVLINK_4, ranks=2, num_instances=8, max_model_len=16384
        ),
        Slo(3.0, 0.1),
        SharedPrefix(150, 5, 6000),
        _constant("llm-d", 1200, 1000),
        Routing.ROUND_ROBIN.value,
        38 / 18,
        4.0,
    ),
    "kthena": World(
        ClusterSpec(
            MODELS["Qwen2.5-7B"], A100_80GB, NVLINK_3, ranks=1, num_instances=3, max_model_len=32768
        ),
        Slo(2.0, 0.1),
        SharedPrefix(256, 32, 4096),
        # What the load generator of its table asks for by default.
        _constant("kthena", 128, 256),
        Routing.LEAST_LOAD.value,
        32.22 / 9.86,
        2.0,
    ),
}


def measurements(name: str) -> list[HeldRate]:
    world = WORLDS[name]
    return [
        HeldRate(
            Goodput(_key(name, entry), world.experiment(entry), LEVEL, DURATION_S, world.lowest)
        )
        for entry in ENTRIES
    ]


def rows(name: str, values: Values) -> list[Row]:
    world = WORLDS[name]
    measured = dict(zip(ENTRIES, measurements(name), strict=True))
    held = {entry: values[each.key] for entry, each in measured.items()}
    base = max(held[world.baseline], world.lowest)
    found = [
        Row(name, f"over {world.baseline}", UNIFIED, "times", held[UNIFIED] / base, world.gain)
    ]
    for entry, each in measured.items():
        found += [
            Row(name, "rate at 90 %", entry, "requests/s", held[entry], is_summary=True),
            Row(name, "at that rate", entry, "cache hits", values[each.hits], is_summary=True),
        ]
    return found


def _key(name: str, entry: str) -> str:
    return f"{name} {entry}"


def _figure(name: str, explanation: str) -> Figure:
    return Figure(lambda: [*measurements(name)], lambda values: rows(name, values), explanation)


FIGURES = {
    "llm-d": _figure(
        "llm-d",
        "llm-d compares the rates at which its TTFT begins to grow, 18 and 38 requests/s; here are "
        "those at which nine in ten requests have their first token within 3 s and the others "
        "every 100 ms.",
    ),
    "kthena": _figure(
        "kthena",
        "kthena sends 300 requests at a time, however long they take, and tells neither its device "
        "nor targets; here requests come one by one, and nine in ten are in time on A100s.",
    ),
}
