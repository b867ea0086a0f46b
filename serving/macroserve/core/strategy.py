"""A strategy: policies of scheduling and routing with the settings that they depend on."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple


class Ordering(StrEnum):
    """Order in which waiting requests are prefilled."""

    FCFS = "fcfs"
    EDF = "edf"
    SLACK = "slack"
    """Earliest deadline minus predicted prefill time first (Ascendra, sections 3.3 and 5.2)."""
    SJF = "sjf"
    """Shortest prompt first; long ones may starve (Ascendra, section 5.2)."""
    LJF = "ljf"
    """Longest prompt first."""


class HybridCache(StrEnum):
    """Rule for caching hidden states instead of keys and values, which takes less memory and more
    time (Apt-Serve, section 3.1)."""

    NEVER = "never"
    CHEAP = "cheap"
    """While memory is short, if attention over a pool full of hidden states takes less than a
    step."""
    VALUE = "value"
    """By Apt-Serve's value, regardless of the cost."""


class WaitingPrompt(NamedTuple):
    """A waiting request, as user-defined orderings see it."""

    num_tokens: int
    """Prompt tokens to compute."""
    arrival_s: float
    """Time of acceptance, seconds on the instance's clock."""
    deadline_s: float
    """When its first token is due, on the same clock."""
    prefill_s: float
    """Predicted time of its prefill alone, seconds."""
    predicted_tokens: int
    """Predicted length of its response."""
    slo_class: str


PromptKey = Callable[[WaitingPrompt], float]
"""Sort key of waiting requests, least first, computed once when a request begins to wait."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One set of policies; ``strategies.py`` defines the named ones."""

    name: str
    batch: Callable[..., Any]
    """Batching policy, a function in ``scheduler/batching``: decides the next batch."""
    route: Callable[..., Any]
    """Routing policy, a function in ``routing/policies.py``: chooses an instance for a request."""
    ordering: Ordering | PromptKey
    takes_turns: bool = False
    """Whether routing follows the paper's order of instances, regardless of cached prefixes."""
    uses_pools: bool = False
    """Whether cells have LP and HP instances."""
    offload: bool = False
    """Whether LP instances hand back requests about to miss their TTFT (Ascendra, section 4.2)."""
    exact_kv: bool = False
    """Whether KV for prompt and predicted response is reserved at once (EconoServe, 3.2)."""
    queues_responses: bool = False
    """Whether a response waits for its own memory after its prefill (EconoServe, section 3)."""
    hybrid_cache: HybridCache = HybridCache.NEVER
    chooses_decodes: bool = False
    """Whether the batching policy chooses which request gives up its cache when memory runs short
    (Apt-Serve, section 5); by default it is the latest arrival."""
    mean_slack: bool = False
    """Whether the mean saved TPOT pays for prefills (EcoServe) instead of the tenth percentile. The
    mean hides young requests behind old ones, so attainment falls even at low load."""
    triage: bool = False
    """Whether the costliest requests are deferred if not all deadlines can be met
    (Moore-Hodgson)."""
    rests: bool = False
    """Whether responses ahead of a looser TPOT target rest while a step with all decodes is too
    long for the tightest target."""
    high_priority_ratio: float = 0.0
    """Default share of a cell's instances in the HP pool."""
    group_by_length: bool = False
    """Whether responses expected to end together begin together (EconoServe, section 3.1)."""
    kv_lending: bool = False
    """Whether reserved but unused memory is lent (EconoServe, section 3.2)."""
    tunables: frozenset[str] = frozenset()
    """Names of the ``Tuning`` fields that its policies read."""

    @property
    def takes_orderings(self) -> bool:
        """Return whether its ordering may be replaced: its batching policy follows the queue."""
        chooses = self.hybrid_cache is HybridCache.VALUE
        return not (self.triage or self.queues_responses or chooses)

    @property
    def keeps_hidden(self) -> bool:
        """Return whether requests may cache hidden states instead of keys and values."""
        return self.hybrid_cache is not HybridCache.NEVER
