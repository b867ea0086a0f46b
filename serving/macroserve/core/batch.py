"""The instance scheduler hands a ``Batch`` to an executor, and gets back a ``BatchResult``.

These are the only seam between policies and the world: the emulated executor and the simulator run
a ``Batch`` and report a ``BatchResult``; the vLLM adapter reports what vLLM took on in the same
form, and later what came out.
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
    """A batch computes a part of one request's prompt."""

    request_id: str
    num_tokens: int
    """Prompt tokens to compute."""
    hidden: bool = False
    """Whether hidden states (the inputs of the attention blocks) are cached in place of keys and
    values."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch holds the prefills and decodes that one iteration runs."""

    kind: BatchKind
    prefills: tuple[Prefill, ...] = ()
    """Prefills in execution order; only the last may end before its prompt does."""
    decodes: tuple[str, ...] = ()
    """Ids of the requests that decode one token each."""
    preempted: tuple[str, ...] = ()
    """Ids of running requests whose KV cache is dropped now; they wait again and are recomputed."""
    handed_back: tuple["HandedBack", ...] = ()
    """Waiting requests that leave this instance (offload or drop) without having started."""
    predicted_s: float = 0.0
    """Duration predicted by the latency model, seconds."""
    reason: str = ""

    @property
    def num_tokens(self) -> int:
        return sum(p.num_tokens for p in self.prefills) + len(self.decodes)


class HandBackReason(StrEnum):
    """The reason tells why an instance hands back a request before its prefill starts."""

    OFFLOAD = "offload"
    """The request is about to miss its TTFT target here; a high-priority instance may still meet
    it."""
    DROP = "drop"
    """The TTFT target has passed, and the operator chose to drop late requests."""
    DRAIN = "drain"
    """The instance is draining."""

    @classmethod
    def _missing_(cls, value: object) -> "HandBackReason":
        """Read an unknown reason of a later version as DRAIN: the request goes to another
        instance."""
        return cls.DRAIN


@dataclass(frozen=True, slots=True)
class HandedBack:
    request_id: str
    reason: HandBackReason


@dataclass(frozen=True, slots=True)
class BatchResult:
    """An executor reports the outcome of a batch."""

    elapsed_s: float
    """Wall time of the iteration, seconds."""
    prefilled: Mapping[str, int] = field(default_factory=dict)
    """Prompt tokens computed, by request id. May be fewer than asked, and more if the prefix cache
    had more of an earlier prompt than was expected."""
    emitted: Mapping[str, int] = field(default_factory=dict)
    """Tokens that became visible, by request id, of requests other than plain decodes: a finished
    prefill emits its first token."""
    finished: tuple[str, ...] = ()
    """Ids of the requests that ended (length, stop token) in this iteration, in the order in which
    they are processed, so that equal seeds give equal figures."""
    decoded: int = 0
    """Tokens that became visible of each decode of the batch that ``emitted`` does not name."""
    cached: Mapping[str, int] = field(default_factory=dict)
    """Prompt tokens found in the prefix cache, by request id, of the prefills that begin; none are
    named by executors without one."""
    drafted: int = 0
    """Drafted tokens that the decodes verify beside their last ones, all together."""
    loading: Collection[str] = ()
    """Ids of the prefills that the engine has not begun, because it loads cache blocks for them."""
