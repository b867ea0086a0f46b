"""Prefix-aware routing: benchmarks that llm-d and kthena have published, and conversations."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from macroserve.core.hybrid_cache import keeping_hidden
from macroserve.core.request import Slo
from macroserve.core.strategies import STRATEGIES
from macroserve.sim.hardware.devices import A100_80GB, H100
from macroserve.sim.hardware.links import NVLINK_3, NVLINK_4
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.results import AT_END
from macroserve.sim.rival_routing import Routing
from macroserve.sim.scenario import ClusterSpec, Scenario
from macroserve.workload.datasets import Workload
from macroserve.workload.lengths import Lognormal
from macroserve.workload.load import Load, LoadLimits, SyntheticLoad, TraceLoad, plan
from macroserve.workload.multi_turn import MultiTurn
from macroserve.workload.shared_prefix import SharedPrefix
from macroserve.workload.trace import Trace
from macroserve_lab.experiment import WARM_UP_S, Experiment
from macroserve_lab.papers.figure import Claim, Figure, annotated
from macroserve_lab.papers.measurements import Goodput, Values, point
from macroserve_lab.papers.sweep import TIMES, Sweep

OWN, UNIFIED = "vllm, own routing", "unified"
ENTRIES = {
    **{routing.value: ("vllm", routing) for routing in Routing if routing is not Routing.OWN},
    OWN: ("vllm", Routing.OWN),
    UNIFIED: ("unified", Routing.OWN),
}
"""Strategy and routing by the name of an entry. All but the last serve with stock vLLM's schedule,
so that only the routing differs."""


def scenario(cluster: ClusterSpec, slo: Slo, entry: str) -> Scenario:
    """Return a cluster with the strategy and the routing of an entry. No instance keeps hidden
    states, next to which prompts would share no blocks."""
    name, routing = ENTRIES[entry]
    return Scenario(cluster, keeping_hidden(STRATEGIES[name], on=False), slo, routing=routing)


# Published benchmarks, with one rule after the other.

LEVEL = 0.9
DURATION_S = 120.0


@dataclass(frozen=True, slots=True)
class World:
    """One published benchmark.

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


HITS = "cache hits"


@dataclass(frozen=True, slots=True)
class HeldRate:
    """A goodput, and the share of the prompt tokens that the prefix caches have at that rate, or
    at the lowest one where none is held."""

    goodput: Goodput

    @property
    def key(self) -> str:
        return self.goodput.key

    def measure(self, seed: int) -> Values:
        held = self.goodput.measure(seed)
        outcome = self.goodput.served(held, seed)
        return {**held, point(self.key, HITS): outcome.prefix_cache_hit_ratio}


def _held(name: str, system: str) -> HeldRate:
    world = WORLDS[name]
    experiment = world.experiment(system)
    return HeldRate(Goodput(f"{name} {system}", experiment, LEVEL, DURATION_S, world.lowest))


def _published(name: str) -> Figure:
    world = WORLDS[name]
    held = Sweep(_held, name=[name], system=ENTRIES)
    over = held.compare(TIMES, UNIFIED, world.baseline, least=world.lowest)
    return Figure(
        held.values(),
        [
            Claim(f"over {world.baseline}", UNIFIED, TIMES.metric, over, world.gain),
            *[
                held.table(case, "{system}", metric, of=(of,), is_summary=True, system=entry)
                for entry in ENTRIES
                for case, metric, of in (
                    ("rate at 90 %", "requests/s", ""),
                    ("at that rate", HITS, HITS),
                )
            ],
        ],
    )


# Prefix caches, and one cache as large as all of them.

COMPARED = (Routing.LEAST_LOAD.value, OWN, UNIFIED)
METRICS = ("attainment", HITS, "by one cache's")


@dataclass(frozen=True, slots=True)
class CacheHits:
    """Attainment of a load, the share of its prompt tokens that the prefix caches had, and that by
    the share that one cache as large as all of them would have had.

    load: a load that says which prompts begin alike.
    duration_s: duration of the arrivals that count; an endless load needs one.
    warm_up_s: seconds of arrivals before those that count.
    """

    key: str
    scenario: Scenario
    load: Load
    duration_s: float = inf
    warm_up_s: float = 0.0

    def measure(self, seed: int) -> Values:
        arrivals = plan(self.load, LoadLimits(self.warm_up_s + self.duration_s), seed)
        num_before = sum([arrival.at_s < self.warm_up_s for arrival in arrivals])
        outcome = self.scenario.serve(arrivals, num_before=num_before, stop=AT_END, seed=seed)
        found, by_one = outcome.prefix_cache_hit_ratio, outcome.one_cache_hit_ratio
        # Where nothing comes twice, one cache finds no more.
        values = (outcome.attainment, found, found / by_one if by_one else 1.0)
        return {point(self.key, of): value for of, value in zip(METRICS, values, strict=True)}


@dataclass(frozen=True, slots=True)
class Case:
    """A load on a cluster, served by each of the entries ``COMPARED``; see ``CacheHits``."""

    name: str
    cluster: ClusterSpec
    slo: Slo
    load: Load
    duration_s: float = inf
    warm_up_s: float = 0.0


def figure_of(name: str, cases: Sequence[Case]) -> Figure:
    """Return the figure ``name`` that serves each case by each entry."""
    hits = Sweep(
        lambda case, system: CacheHits(
            f"{name}, {case.name}, {system}",
            scenario(case.cluster, case.slo, system),
            case.load,
            case.duration_s,
            case.warm_up_s,
        ),
        case=cases,
        system=COMPARED,
    )
    return Figure(hits.values(), hits.table("{case.name}", "{system}", of=METRICS, is_summary=True))


# Conversations that all instances' caches can hold, and conversations that they cannot.

CHATS_S = 300.0
CHAT_RATES = (1.0, 1.8)
"""Conversations per second. The caches hold those of the first rate, and not those of the second,
which is near what the instances can compute."""

CHAT_CLUSTER = replace(WORLDS["llm-d"].cluster, max_model_len=40_960)
CONVERSATION = MultiTurn(8, 30.0)
MESSAGE, RESPONSE = Lognormal(2000, 1200), Lognormal(300, 200)


def _chats(rate: float) -> Case:
    load = SyntheticLoad(rate, 1.0, MESSAGE, RESPONSE, multi_turn=CONVERSATION)
    name = f"{rate:g} conversations/s"
    return Case(name, CHAT_CLUSTER, Slo(3.0, 0.1), load, CHATS_S, WARM_UP_S)


# Mooncake's conversations, as recorded: 12,031 requests of an hour that say what they share. The
# trace, conversation_trace.jsonl of FAST25-release/traces in kvcache-ai/Mooncake, is not part of
# this project.

STRETCH_S = 900.0
"""Seconds of the trace that are served, from its start."""

TIME_SCALES = {8: 1.0, 16: 2.0}
"""Speed of the replay by the number of instances."""

MOONCAKE_CLUSTER = replace(WORLDS["llm-d"].cluster, max_model_len=131_072)


def mooncake(trace: Trace) -> Figure:
    """Return the figure of a trace. Raises ValueError for one that does not say what prompts
    share."""
    stretch = Trace(tuple(row for row in trace.rows if row.at_s < STRETCH_S))
    if not any(row.block_ids for row in stretch.rows):
        raise ValueError("the trace has no hash_ids, which say which prompts begin alike")
    return figure_of(
        "mooncake",
        [
            Case(
                f"{number} instances, {speed:g} x speed",
                replace(MOONCAKE_CLUSTER, num_instances=number),
                Slo(4.0, 0.1),
                TraceLoad(stretch, speed),
            )
            for number, speed in TIME_SCALES.items()
        ],
    )


FIGURES = annotated(
    __name__,
    {
        "llm-d": _published("llm-d"),
        "kthena": _published("kthena"),
        "conversations": figure_of("conversations", [_chats(rate) for rate in CHAT_RATES]),
    },
)
RECORDED = {"mooncake": mooncake}
"""Figures of a recorded load, made from its trace."""
