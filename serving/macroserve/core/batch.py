"""The seam between scheduling policies and executors: a ``Batch`` out, a ``BatchResult`` back.

The emulated executor and the simulator run batches; the vLLM adapter describes vLLM's own steps in
the same form.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class BatchKind(StrEnum):
    IDLE = "idle"
    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Prefill:
    """The part of a request's prompt that one batch computes."""

    request_id: str
    num_tokens: int
    hidden: bool = False
    """Whether hidden states (inputs of the attention blocks) are cached instead of keys, values."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The prefills and decodes of one iteration."""

    kind: BatchKind
    prefills: tuple[Prefill, ...] = ()
    """Prefills in execution order; only the last may leave its prompt unfinished."""
    decodes: tuple[str, ...] = ()
    """Ids of the requests that decode one token each."""
    preempted: tuple[str, ...] = ()
    """Ids of running requests whose KV cache is dropped now and recomputed later."""
    handed_back: tuple["HandedBack", ...] = ()
    """Waiting requests that leave this instance without having started."""
    predicted_s: float = 0.0
    """Duration predicted by the latency model, seconds."""
    reason: str = ""

    @property
    def num_tokens(self) -> int:
        return sum(p.num_tokens for p in self.prefills) + len(self.decodes)


class HandBackReason(StrEnum):
    """Reason to hand back a request before its prefill starts."""

    OFFLOAD = "offload"
    """The request would miss its TTFT target here; a high-priority instance may still meet it."""
    DROP = "drop"
    """The TTFT target has passed, and the deployment drops late requests."""
    DRAIN = "drain"

    @classmethod
    def _missing_(cls, value: object) -> "HandBackReason":
        """Read a later version's reason as DRAIN: the request goes to another instance."""
        return cls.DRAIN


@dataclass(frozen=True, slots=True)
class HandedBack:
    request_id: str
    reason: HandBackReason


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Outcome of a batch, as its executor reports it."""

    elapsed_s: float
    """Wall time of the iteration, seconds."""
    prefilled: Mapping[str, int] = field(default_factory=dict)
    """Prompt tokens computed, by request id: fewer than requested if the engine ran fewer, more if
    the prefix cache missed tokens that were expected there."""
    emitted: Mapping[str, int] = field(default_factory=dict)
    """New visible tokens by request id, except plain decodes: a finished prefill emits its first
    token."""
    finished: tuple[str, ...] = ()
    """Ids of the requests that ended (length, stop token), in order of processing, so that equal
    seeds give equal results."""
    decoded: int = 0
    """New visible tokens of each decode of the batch that is not in ``emitted``."""
    cached: Mapping[str, int] = field(default_factory=dict)
    """Prompt tokens found in the prefix cache, by id of each request that begins its prefill."""
    drafted: int = 0
    """Drafted tokens that all decodes together verify."""
    loading: Collection[str] = ()
    """Ids of prefills that the engine has not begun because it is loading cache blocks for them."""
