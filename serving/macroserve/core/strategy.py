"""Named sets of policies: each paper whole, the baselines, and the combination."""

from dataclasses import dataclass
from enum import StrEnum


class Batching(StrEnum):
    """What an instance runs next. Each member is one composer in ``core.instance``."""

    SEPARATE = "separate"
    """Prefills alone, before decodes (vLLM as the papers measured it)."""
    CHUNKED = "chunked"
    """Decodes first, then a fixed chunk of prefill in the same batch (Sarathi)."""
    TEMPORAL = "temporal"
    """Prefill phases paid for by saved TPOT, never mixed (EcoServe, section 3.2)."""
    PIGGYBACK = "piggyback"
    """LP: decodes up to the batch limit, then prefills by value; HP: prefills first (Ascendra)."""
    ADAPTIVE = "adaptive"
    """Prefills or decodes, whichever wait longer, chosen by value for their memory (Apt-Serve)."""
    ADAPTIVE_CHUNKED = "adaptive_chunked"
    """Decodes first, then a chunk of prefills so chosen (Apt-Serve-S)."""
    DECOUPLED = "decoupled"
    """Prompts and responses wait apart: responses fill the memory, prompts the compute
    (EconoServe)."""
    SLACK = "slack"
    """Mixed steps sized by the slack of the decoding requests (unified)."""


class Routing(StrEnum):
    """Which instance of a cell takes a request. Each member is one function in ``core.routing``."""

    LEAST_LOAD = "least_load"
    ROLLING = "rolling"
    """EcoServe's Algorithms 1 and 2 over a cyclic order."""
    POOLS = "pools"
    """Ascendra: LP round robin, tickets and offloads to HP."""
    BALANCED = "balanced"
    """Fewest requests, over LP and HP pools."""
    ROLES = "roles"
    """HP instances prefill, LP instances decode, the least loaded of each (DistServe, MoonCake)."""


class Transfer(StrEnum):
    """How far a request's KV cache travels between its prefill and its first decode."""

    NOWHERE = "nowhere"
    NODE = "node"
    """To another instance of the same node (DistServe)."""
    NETWORK = "network"
    """To any instance (MoonCake)."""


class Ordering(StrEnum):
    """In which order waiting requests are prefilled."""

    FCFS = "fcfs"
    EDF = "edf"
    SJF = "sjf"
    """Shortest prompt first; a long one may wait for ever (Ascendra, section 5.2)."""
    LJF = "ljf"
    """Longest prompt first."""


class HybridCache(StrEnum):
    """When hidden states are kept in place of keys and values (Apt-Serve, section 3.1), of which
    they take less memory and more time."""

    NEVER = "never"
    CHEAP = "cheap"
    """Where memory is short, and to attend to a whole pool of them takes less than a step."""
    VALUE = "value"
    """Where Apt-Serve's value says so, whatever they cost."""


@dataclass(frozen=True, slots=True)
class Strategy:
    name: str
    batching: Batching
    routing: Routing
    ordering: Ordering
    offload: bool = False
    """LP instances hand back requests about to miss their TTFT (Ascendra, section 4.2)."""
    exact_kv: bool = False
    """Reserve KV for prompt + predicted response at once (EconoServe, section 3.2)."""
    hybrid_cache: HybridCache = HybridCache.NEVER
    mean_slack: bool = False
    """The mean saved TPOT pays for prefills, as EcoServe writes, instead of its tenth percentile.
    Old requests then hide young ones, so that attainment falls at low load already."""
    triage: bool = False
    """Demote the costliest requests when not all deadlines can be met (Moore-Hodgson)."""
    high_priority_ratio: float = 0.0
    """Share of a cell's instances in the HP pool, where nobody asks for another."""
    transfer: Transfer = Transfer.NOWHERE
    group_by_length: bool = False
    """Responses that are expected to end together begin together (EconoServe, section 3.1)."""
    kv_lending: bool = False
    """Memory that is reserved and not used yet is lent for as long (EconoServe, section 3.2)."""

    @property
    def queues_responses(self) -> bool:
        """Whether a response waits for its own memory once its prompt is in."""
        return self.batching is Batching.DECOUPLED

    @property
    def keeps_hidden(self) -> bool:
        return self.hybrid_cache is not HybridCache.NEVER

    @property
    def moves_kv(self) -> bool:
        return self.transfer is not Transfer.NOWHERE

    @property
    def uses_pools(self) -> bool:
        return self.routing in (Routing.POOLS, Routing.BALANCED, Routing.ROLES)


STRATEGIES: dict[str, Strategy] = {
    s.name: s
    for s in (
        Strategy("vllm", Batching.SEPARATE, Routing.LEAST_LOAD, Ordering.FCFS),
        Strategy("sarathi", Batching.CHUNKED, Routing.LEAST_LOAD, Ordering.FCFS),
        Strategy("ecoserve", Batching.TEMPORAL, Routing.ROLLING, Ordering.FCFS, mean_slack=True),
        Strategy(
            "aptserve",
            Batching.ADAPTIVE,
            Routing.LEAST_LOAD,
            Ordering.FCFS,
            hybrid_cache=HybridCache.VALUE,
        ),
        Strategy(
            "aptserve-s",
            Batching.ADAPTIVE_CHUNKED,
            Routing.LEAST_LOAD,
            Ordering.FCFS,
            hybrid_cache=HybridCache.VALUE,
        ),
        Strategy(
            "econoserve",
            Batching.DECOUPLED,
            Routing.LEAST_LOAD,
            Ordering.EDF,
            exact_kv=True,
            group_by_length=True,
            kv_lending=True,
        ),
        Strategy(
            "ascendra",
            Batching.PIGGYBACK,
            Routing.POOLS,
            Ordering.EDF,
            offload=True,
            # 2 LP + 1 HP: the best of the configurations tried (section 8.4).
            high_priority_ratio=1 / 3,
        ),
        Strategy(
            "unified",
            Batching.SLACK,
            Routing.BALANCED,
            Ordering.EDF,
            offload=True,
            triage=True,
            hybrid_cache=HybridCache.CHEAP,
        ),
    )
}


DISAGGREGATED: dict[str, Strategy] = {
    name: Strategy(name, Batching.SEPARATE, Routing.ROLES, Ordering.FCFS, transfer=transfer)
    for name, transfer in (("distserve", Transfer.NODE), ("mooncake", Transfer.NETWORK))
}
"""Baselines for the simulator alone: no engine here sends KV caches to another."""


def strategy(name: str) -> Strategy:
    """The strategy of that name; raises ValueError naming the known ones."""
    known = STRATEGIES | DISAGGREGATED
    try:
        return known[name]
    except KeyError:
        raise ValueError(f"unknown strategy {name!r}, known are: {', '.join(known)}") from None
