"""A strategy combines the policies of scheduling and routing with the settings they depend on."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple


class Transfer(StrEnum):
    """A request's KV cache may travel this far between its prefill and its first decode."""

    NOWHERE = "nowhere"
    NODE = "node"
    """To another instance of the same node (DistServe)."""
    NETWORK = "network"
    """To any instance (MoonCake)."""


class Ordering(StrEnum):
    """Waiting requests are prefilled in this order."""

    FCFS = "fcfs"
    EDF = "edf"
    SLACK = "slack"
    """Least slack first: the deadline, less the predicted time of the prefill (Ascendra, sections
    3.3 and 5.2)."""
    SJF = "sjf"
    """Shortest prompt first; a long one may wait for ever (Ascendra, section 5.2)."""
    LJF = "ljf"
    """Longest prompt first."""


class HybridCache(StrEnum):
    """Hidden states replace keys and values under this condition (Apt-Serve, section 3.1).

    Hidden states take less memory and more time.
    """

    NEVER = "never"
    CHEAP = "cheap"
    """Memory is short, and attention over a whole pool of hidden states takes less than a step."""
    VALUE = "value"
    """Apt-Serve's value decides, whatever the cost."""


class WaitingPrompt(NamedTuple):
    """A user's own ordering sees these facts of a waiting request."""

    num_tokens: int
    """Prompt tokens to compute."""
    arrival_s: float
    """Time of its acceptance, seconds on the instance's clock."""
    deadline_s: float
    """Time at which its first token is due, on the same clock."""
    prefill_s: float
    """Predicted time of its prefill alone, seconds."""
    predicted_tokens: int
    """Tokens expected of its response."""
    slo_class: str
    """Name of its SLO class."""


PromptKey = Callable[[WaitingPrompt], float]
"""A function gives each waiting request a key; the least key is prefilled first. It is called when
the request begins to wait, so that the order holds while all wait alike."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A strategy is one set of policies; ``strategies.py`` has the named ones."""

    name: str
    batch: Callable[..., Any]
    """Batching policy, a function in ``scheduler/batching``: decides the next batch."""
    route: Callable[..., Any]
    """Routing policy, a function in ``routing/policies.py``: chooses an instance for a request."""
    ordering: Ordering | PromptKey
    takes_turns: bool = False
    """True: instances take requests in the order of its paper, whatever beginnings of prompts they
    have, and cells go by load alone."""
    uses_pools: bool = False
    """Whether cells have LP and HP instances."""
    offload: bool = False
    """Whether LP instances hand back requests about to miss their TTFT (Ascendra, section 4.2)."""
    exact_kv: bool = False
    """Whether KV is reserved for prompt and predicted response at once (EconoServe, section
    3.2)."""
    queues_responses: bool = False
    """Whether a response waits for its own memory once its prompt is computed (EconoServe, section
    3)."""
    hybrid_cache: HybridCache = HybridCache.NEVER
    chooses_decodes: bool = False
    """The flag lets the batching policy choose who gives up its cache when memory runs short
    (Apt-Serve, section 5); elsewhere it is the latest arrival."""
    mean_slack: bool = False
    """Whether the mean saved TPOT pays for prefills, as in EcoServe, instead of the tenth
    percentile. The mean hides young requests behind old ones, so attainment falls at low load
    already."""
    triage: bool = False
    """Whether the costliest requests are deferred if not all deadlines can be met
    (Moore-Hodgson)."""
    rests: bool = False
    """True: responses that are ahead of a looser TPOT target rest while a step with all decodes is
    too long for the tightest one."""
    high_priority_ratio: float = 0.0
    """Share of a cell's instances in the HP pool, unless the user asks for another."""
    transfer: Transfer = Transfer.NOWHERE
    group_by_length: bool = False
    """Whether responses that are expected to end together begin together (EconoServe, section
    3.1)."""
    kv_lending: bool = False
    """Whether reserved memory that is not used yet is lent meanwhile (EconoServe, section 3.2)."""
    tunables: frozenset[str] = frozenset()
    """Names of the numbers in ``Tuning`` that its policies read."""

    @property
    def takes_orderings(self) -> bool:
        """Return whether another ordering may take the place of its own: whether its batching
        policy takes the waiting requests in their order."""
        chooses = self.hybrid_cache is HybridCache.VALUE
        return not (self.triage or self.queues_responses or chooses)

    @property
    def keeps_hidden(self) -> bool:
        """Return whether requests may keep hidden states in place of keys and values."""
        return self.hybrid_cache is not HybridCache.NEVER

    @property
    def moves_kv(self) -> bool:
        """Return whether requests decode on another instance than the one that prefilled them."""
        return self.transfer is not Transfer.NOWHERE
