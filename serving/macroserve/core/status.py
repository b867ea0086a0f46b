"""Routing and scaling decide from snapshots: plain data, pushed by instances and cells.

They are structs and not dataclasses, which take five times as long to create: each batch creates
some.
"""

from enum import StrEnum

import msgspec


def by_number(name: str) -> tuple[int, str]:
    """Return the key by which cell-2 comes before cell-10, and instances likewise."""
    return len(name), name


class Phase(StrEnum):
    """The phase is the kind of an instance's current work (EcoServe, section 3.2: temporal
    disaggregation)."""

    IDLE = "idle"
    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"

    @classmethod
    def _missing_(cls, value: object) -> "Phase":
        """Read an unknown phase of a later version as MIXED."""
        return cls.MIXED


class Pool(StrEnum):
    """An instance belongs to a pool of its cell (Ascendra, section 4)."""

    LP = "lp"
    """Low priority: optimizes throughput, out of order."""
    HP = "hp"
    """High priority: takes urgent requests, and under Ascendra's own strategy runs prefills
    first."""

    @classmethod
    def _missing_(cls, value: object) -> "Pool":
        """Read an unknown pool of a later version as LP, whose instances take all requests."""
        return cls.LP

    @property
    def label(self) -> str:
        """Return the pool as people read it: ``LP`` or ``HP``."""
        return self.value.upper()


class Ended(msgspec.Struct, frozen=True):
    """A number of requests ended, and some of them met their targets."""

    finished: int = 0
    attained: int = 0

    def __add__(self, other: "Ended") -> "Ended":
        return Ended(self.finished + other.finished, self.attained + other.attained)

    def __sub__(self, other: "Ended") -> "Ended":
        return Ended(self.finished - other.finished, self.attained - other.attained)


class InstanceStatus(msgspec.Struct, frozen=True):
    """An instance reports its state after an iteration. Times are durations, never clock
    readings."""

    seq: int
    """Number that grows with every status of one incarnation, so that late ones are recognized."""
    phase: Phase = Phase.IDLE
    num_waiting: int = 0
    num_running: int = 0
    num_decoding: int = 0
    waiting_tokens: int = 0
    """Prompt tokens not yet prefilled."""
    waiting_prefill_s: float = 0.0
    """Predicted time of their prefill, seconds."""
    yielding: tuple[tuple[float, float], ...] = ()
    """The prefills among them that give way to requests with shorter TTFT targets: a target and the
    predicted time of all that have it, both in seconds, the longest target first; empty where
    requests do not give way."""
    phase_prefill_s: float = 0.0
    """Predicted time of the prefills that arrived since the last switch to decode, done or not,
    seconds: the ``pending`` of EcoServe's Algorithm 2.
    """
    saved_tpot_mean_s: float | None = None
    """Mean slack of the decoding requests, (L-1)*TPOT - (now - first token), seconds; None if none
    decodes."""
    saved_tpot_p10_s: float | None = None
    """Tenth percentile of the same slack, seconds; None if none decodes."""
    decode_step_s: float = 0.0
    """Predicted time per token of a step with all decodes and nothing else, seconds."""
    prefill_s_per_token: float = 0.0
    """Predicted time per prompt token of a full batch, seconds."""
    queue_s_per_token: float = 0.0
    """Recently measured time in which the queue gets shorter by a token, seconds."""
    remaining_tokens: int = 0
    """Predicted output tokens still owed to running and waiting requests."""
    free_blocks: int = 0
    num_blocks: int = 0
    block_size: int = 16
    """Tokens per block."""
    oldest_wait_s: float = 0.0
    """Wait of the oldest request without a first token, seconds."""
    phase_s: float | None = None
    """Time since the phase began, seconds; negative if its first batch is decided and waits for the
    one ahead. None if unknown."""
    hidden_blocks: int = 0
    """Blocks that the hidden states of the decoding requests fill."""
    step_s: float | None = None
    """Mean measured time of the last steps, seconds; None before the first step."""
    predicted_step_s: float | None = None
    """Mean predicted time of the same steps, seconds."""
    admitted: tuple[str, ...] = ()
    """Ids taken in since the last status, so that a scheduler stops counting them in flight."""
    finished: int = 0
    """Requests ended so far."""
    attained: int = 0
    """Requests ended so far that met their targets."""
    ended_by_class: dict[str, Ended] = {}
    """Requests ended so far, of all SLO classes but the default one."""
    draining: bool = False
    iterations: int = 0
    """Iterations finished so far, including idle ones."""
    prompt_tokens: int = 0
    """Prompt tokens of the requests begun so far; those of a preempted one count again."""
    cached_tokens: int = 0
    """Those of them that the prefix cache had."""
    decodes: int = 0
    """Decodes of a speculating engine so far, one for each request and step."""
    decoded_tokens: int = 0
    """Tokens that came out of them."""


UNHEARD = InstanceStatus(seq=-1, draining=True)
"""Status of an instance before its first report: it takes no requests, and any status is newer."""


class InstanceView(msgspec.Struct, frozen=True):
    """The cell scheduler's view of an instance is its last status plus decisions in flight."""

    name: str
    pool: Pool
    status: InstanceStatus
    as_of_s: float
    """Arrival of the status, seconds on the cell scheduler's clock."""
    max_num_seqs: int
    """Maximum requests of one batch."""
    in_flight_requests: int = 0
    """Requests routed to the instance that no status has acknowledged yet."""
    in_flight_tokens: int = 0
    """Tokens of those requests."""
    in_flight_prefill_s: float = 0.0
    """Predicted prefill time of those requests, seconds."""
    in_flight_blocks: int = 0
    """Blocks that those requests will need."""
    on_trial: bool = False
    """Whether it runs a request under which instances broke before; no other request is routed to
    it."""

    @property
    def num_waiting(self) -> int:
        """Return the requests that wait at the instance, or are on their way to it."""
        return self.status.num_waiting + self.in_flight_requests

    @property
    def num_outstanding(self) -> int:
        """Return the requests that were routed to the instance and have not ended."""
        status = self.status
        return status.num_waiting + status.num_running + self.in_flight_requests

    def prefill_ahead_s(self, ttft_s: float) -> float:
        """Return the predicted time of the prefills that go before a request with a TTFT target of
        ``ttft_s``, those on their way to the instance included; both in seconds."""
        status, behind_s = self.status, 0.0
        # A loop, because routing asks each instance three times and mostly there is nothing.
        for longer_s, prefill_s in status.yielding:
            if longer_s > ttft_s:
                behind_s += prefill_s
        return max(0.0, status.waiting_prefill_s - behind_s) + self.in_flight_prefill_s

    @property
    def heard(self) -> bool:
        """Return whether the instance has sent a status."""
        return self.status is not UNHEARD


class CellView(msgspec.Struct, frozen=True):
    """The view sums over a cell's instances, for the overall scheduler and the planner."""

    name: str
    instances: tuple[str, ...]
    high_priority: tuple[str, ...] = ()
    """Names among ``instances`` in the HP pool."""
    num_ready: int = 0
    """Instances that take requests: heard from, not draining."""
    num_prefilling: int = 0
    """Running requests before their first token."""
    num_decoding: int = 0
    """Running requests after their first token."""
    num_waiting: int = 0
    """Waiting requests, decisions in flight included."""
    num_running: int = 0
    waiting_prefill_s: float = 0.0
    """Predicted time of their prefills, seconds, decisions in flight included."""
    prefill_s_per_token: float = 0.0
    """Predicted time per prompt token on the slowest instance, seconds."""
    free_blocks: int = 0
    """Free blocks, less those of decisions in flight."""
    num_blocks: int = 0
    finished: int = 0
    """Requests that ended in the cell since its scheduler began; never falls."""
    attained: int = 0
    """Those of them that met their targets; never falls."""
    ended_by_class: dict[str, Ended] = {}
    """Requests that ended, of all SLO classes but the default one; never falls."""
    prompt_tokens: int = 0
    """Prompt tokens begun in the cell since its scheduler began, as an instance counts them; never
    falls."""
    cached_tokens: int = 0
    """Those of them that prefix caches had; never falls."""
    decodes: int = 0
    """Decodes of speculating engines since its scheduler began, as an instance counts them; never
    falls."""
    decoded_tokens: int = 0
    """Tokens that came out of them; never falls."""
    lost_tokens: int = 0
    """Prompt tokens that prefix caches were expected to have of instances that left the cell,
    restarted or fell silent since its scheduler began; never falls."""
    moved_tokens: int = 0
    """The same of instances that went on in another cell, which took them along; never falls."""
    pool_tokens: int = 0
    """Tokens that the KV caches of its instances hold."""
    decode_step_s: float = 0.0
    """Predicted time per token of a step with all decodes, mean of the instances that take
    requests, seconds."""
