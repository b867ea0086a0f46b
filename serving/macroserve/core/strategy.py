"""A strategy: the policies of scheduling and routing, and what they depend on."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


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
    """One set of policies; `strategies.py` has the named ones."""

    name: str
    batch: Callable[..., Any]
    """The batching policy, a function in ``scheduler/batching``: what an instance runs next."""
    route: Callable[..., Any]
    """The routing policy, a function in ``routing/policies``: which instance takes a request."""
    ordering: Ordering
    uses_pools: bool = False
    """Cells have LP and HP instances."""
    offload: bool = False
    """LP instances hand back requests about to miss their TTFT (Ascendra, section 4.2)."""
    exact_kv: bool = False
    """KV is reserved for prompt and predicted response at once (EconoServe, section 3.2)."""
    queues_responses: bool = False
    """A response waits for its own memory once its prompt is computed (EconoServe, section 3)."""
    hybrid_cache: HybridCache = HybridCache.NEVER
    mean_slack: bool = False
    """The mean saved TPOT pays for prefills, as in EcoServe, instead of the tenth percentile.
    The mean hides young requests behind old ones, so attainment falls at low load already."""
    triage: bool = False
    """The costliest requests are deferred when not all deadlines can be met (Moore-Hodgson)."""
    high_priority_ratio: float = 0.0
    """Share of a cell's instances in the HP pool, unless the user asks for another."""
    transfer: Transfer = Transfer.NOWHERE
    group_by_length: bool = False
    """Responses that are expected to end together begin together (EconoServe, section 3.1)."""
    kv_lending: bool = False
    """Reserved memory that is not used yet is lent meanwhile (EconoServe, section 3.2)."""

    @property
    def keeps_hidden(self) -> bool:
        """Whether requests may keep hidden states in place of keys and values."""
        return self.hybrid_cache is not HybridCache.NEVER

    @property
    def moves_kv(self) -> bool:
        """Whether requests decode on another instance than the one that prefilled them."""
        return self.transfer is not Transfer.NOWHERE
