"""What the instance scheduler hands to an executor, and what comes back.

This pair is the one seam between policies and the world: the vLLM adapter, the emulated executor
and the simulator each run a ``Batch`` and report a ``BatchResult``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class BatchKind(StrEnum):
    IDLE = "idle"
    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Prefill:
    """``num_tokens`` of one request's prompt to compute in this batch.

    hidden: of this request the inputs of the attention blocks are kept, not keys and values.
    """

    request_id: str
    num_tokens: int
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """One iteration.

    prefills: in execution order; only the last may end before its prompt does.
    decodes: request ids, one token each.
    preempted: running requests whose KV cache must be dropped now; they wait again and recompute.
    handed_back: waiting requests that must leave this instance (offload or drop), never started.
    predicted_s: what the latency model expects of it, seconds.
    """

    kind: BatchKind
    prefills: tuple[Prefill, ...] = ()
    decodes: tuple[str, ...] = ()
    preempted: tuple[str, ...] = ()
    handed_back: tuple["HandedBack", ...] = ()
    predicted_s: float = 0.0
    reason: str = ""

    @property
    def num_tokens(self) -> int:
        return sum(p.num_tokens for p in self.prefills) + len(self.decodes)


class HandBackReason(StrEnum):
    """Why an instance gives a request up before its prefill starts."""

    OFFLOAD = "offload"
    """About to miss its TTFT target here: a high-priority instance may still make it."""
    DROP = "drop"
    """Its TTFT target is past, and the operator chose to drop late requests."""
    DRAIN = "drain"
    """The instance is leaving."""

    @classmethod
    def _missing_(cls, value: object) -> "HandBackReason":
        """Take a reason of a later version for DRAIN: the request goes to another instance."""
        return cls.DRAIN


@dataclass(frozen=True, slots=True)
class HandedBack:
    request_id: str
    reason: HandBackReason


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What an executor did with a batch.

    elapsed_s: wall time of the iteration.
    prefilled: prompt tokens computed by request id; may be less than asked, never more, except
        that tokens found in a prefix cache count as computed.
    decoded: tokens that became visible of each decode of the batch that ``emitted`` does not name.
    emitted: those of others by request id (a finished prefill emits its first token).
    finished: ids of requests that ended (length, stop token) with this iteration, in the order in
        which they are to be taken in, so that the same seeds give the same figures.
    """

    elapsed_s: float
    prefilled: Mapping[str, int] = field(default_factory=dict)
    emitted: Mapping[str, int] = field(default_factory=dict)
    finished: tuple[str, ...] = ()
    decoded: int = 0
