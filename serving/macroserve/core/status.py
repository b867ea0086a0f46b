"""Snapshots of instances and cells, which routing and scaling decide on.

Structs rather than dataclasses, which take five times as long to create: every batch creates some.
"""

from enum import StrEnum

import msgspec


def by_number(name: str) -> tuple[int, str]:
    """Return a sort key that puts cell-2 before cell-10."""
    return len(name), name


class Phase(StrEnum):
    """An instance's current kind of work (EcoServe, section 3.2: temporal disaggregation)."""

    IDLE = "idle"
    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"

    @classmethod
    def _missing_(cls, value: object) -> "Phase":
        """Read a later version's phase as MIXED."""
        return cls.MIXED


class Pool(StrEnum):
    """Pool of an instance within its cell (Ascendra, section 4)."""

    LP = "lp"
    """Low priority: optimizes throughput, out of order."""
    HP = "hp"
    """High priority: takes urgent requests; under the Ascendra strategy it runs prefills first."""

    @classmethod
    def _missing_(cls, value: object) -> "Pool":
        """Read a later version's pool as LP, whose instances take all requests."""
        return cls.LP

    @property
    def label(self) -> str:
        return self.value.upper()


class Ended(msgspec.Struct, frozen=True):
    """Counts of finished requests."""

    finished: int = 0
    attained: int = 0
    """Those that met their targets."""

    def __add__(self, other: "Ended") -> "Ended":
        return Ended(self.finished + other.finished, self.attained + other.attained)

    def __sub__(self, other: "Ended") -> "Ended":
        return Ended(self.finished - other.finished, self.attained - other.attained)


class InstanceStatus(msgspec.Struct, frozen=True):
    """State of an instance after an iteration. Times are durations, never clock readings."""

    seq: int
    """Sequence number within an incarnation, by which late statuses are recognized."""
    phase: Phase = Phase.IDLE
    num_waiting: int = 0
    num_running: int = 0
    num_decoding: int = 0
    waiting_tokens: int = 0
    """Prompt tokens not yet prefilled."""
    waiting_prefill_s: float = 0.0
    """Predicted time of their prefill, seconds."""
    yielding: tuple[tuple[float, float], ...] = ()
    """Prefills that give way to requests with shorter TTFT targets: pairs of a target and the total
    predicted time of its prefills, seconds, longest target first."""
    phase_prefill_s: float = 0.0
    """Predicted time of all prefills that arrived since the last switch to decode, seconds:
    ``pending`` in EcoServe's Algorithm 2."""
    saved_tpot_mean_s: float | None = None
    """Mean slack of the decoding requests, (L-1)*TPOT - (now - first token), seconds; None if none
    decodes."""
    saved_tpot_p10_s: float | None = None
    """Tenth percentile of the same slack, seconds."""
    decode_step_s: float = 0.0
    """Predicted time per token of a step with all decodes and nothing else, seconds."""
    prefill_s_per_token: float = 0.0
    """Predicted time per prompt token of a full batch, seconds."""
    queue_s_per_token: float = 0.0
    """Recently measured time per token by which the queue shrinks, seconds."""
    remaining_tokens: int = 0
    """Predicted output tokens left for running and waiting requests."""
    free_blocks: int = 0
    num_blocks: int = 0
    block_size: int = 16
    """Tokens per block."""
    oldest_wait_s: float = 0.0
    """Wait of the oldest request without a first token, seconds."""
    phase_s: float | None = None
    """Time since the phase began, seconds; negative while its first batch waits for the batch
    ahead, None if unknown."""
    hidden_blocks: int = 0
    """Blocks with hidden states of decoding requests."""
    step_s: float | None = None
    """Mean measured time of the last steps, seconds; None before the first step."""
    predicted_step_s: float | None = None
    """Mean predicted time of the same steps, seconds."""
    admitted: tuple[str, ...] = ()
    """Ids accepted since the last status, which no longer count as in flight."""
    finished: int = 0
    """Requests ended so far."""
    attained: int = 0
    """Those that met their targets."""
    ended_by_class: dict[str, Ended] = {}
    """Requests ended so far in each SLO class except the default one."""
    draining: bool = False
    iterations: int = 0
    """Iterations finished so far, including idle ones."""
    prompt_tokens: int = 0
    """Prompt tokens of the requests begun so far; those of a preempted one count again."""
    cached_tokens: int = 0
    """Those that were found in the prefix cache."""
    decodes: int = 0
    """Decodes of a speculating engine so far, one per request and step."""
    decoded_tokens: int = 0
    """Tokens that they produced."""


UNHEARD = InstanceStatus(seq=-1, draining=True)
"""Status of an instance before its first report: no requests, and older than any other."""


class InstanceView(msgspec.Struct, frozen=True):
    """A cell scheduler's view of an instance: its last status plus decisions in flight."""

    name: str
    pool: Pool
    status: InstanceStatus
    as_of_s: float
    """Arrival of the status, seconds on the cell scheduler's clock."""
    max_num_seqs: int
    """Maximum requests per batch."""
    in_flight_requests: int = 0
    """Requests routed to the instance that no status has acknowledged yet."""
    in_flight_tokens: int = 0
    in_flight_prefill_s: float = 0.0
    """Their predicted prefill time, seconds."""
    in_flight_blocks: int = 0
    """Blocks that they will need."""
    on_trial: bool = False
    """Whether it runs a request that broke instances before; it gets no other request."""

    @property
    def num_waiting(self) -> int:
        """Return the requests that wait at the instance or are in flight to it."""
        return self.status.num_waiting + self.in_flight_requests

    @property
    def num_outstanding(self) -> int:
        """Return the unfinished requests at the instance or in flight to it."""
        status = self.status
        return status.num_waiting + status.num_running + self.in_flight_requests

    def prefill_ahead_s(self, ttft_s: float) -> float:
        """Return the predicted seconds of prefills ahead of a new request with a TTFT target of
        ``ttft_s``, including those in flight."""
        status, behind_s = self.status, 0.0
        # A loop, because this runs three times per instance and decision, mostly over nothing.
        for longer_s, prefill_s in status.yielding:
            if longer_s > ttft_s:
                behind_s += prefill_s
        return max(0.0, status.waiting_prefill_s - behind_s) + self.in_flight_prefill_s

    @property
    def heard(self) -> bool:
        """Return whether the instance has sent a status."""
        return self.status is not UNHEARD


class CellView(msgspec.Struct, frozen=True):
    """Sums over a cell's instances, for the overall scheduler and the planner.

    Counts of requests and tokens so far start with the cell's scheduler and never fall.
    """

    name: str
    instances: tuple[str, ...]
    high_priority: tuple[str, ...] = ()
    """Names among ``instances`` in the HP pool."""
    num_ready: int = 0
    """Instances that take requests: they have reported and are not draining."""
    num_prefilling: int = 0
    """Running requests before their first token."""
    num_decoding: int = 0
    """Running requests after their first token."""
    num_waiting: int = 0
    """Waiting requests, including those in flight."""
    num_running: int = 0
    waiting_prefill_s: float = 0.0
    """Predicted time of their prefills, seconds."""
    prefill_s_per_token: float = 0.0
    """Predicted time per prompt token on the slowest instance, seconds."""
    free_blocks: int = 0
    """Free blocks minus those that requests in flight will need."""
    num_blocks: int = 0
    finished: int = 0
    """Requests that ended so far."""
    attained: int = 0
    """Those that met their targets."""
    ended_by_class: dict[str, Ended] = {}
    """Requests that ended so far in each SLO class except the default one."""
    prompt_tokens: int = 0
    """Prompt tokens begun so far, as in ``InstanceStatus``."""
    cached_tokens: int = 0
    """Those that were found in prefix caches."""
    decodes: int = 0
    """Decodes of speculating engines so far, as in ``InstanceStatus``."""
    decoded_tokens: int = 0
    """Tokens that they produced."""
    lost_tokens: int = 0
    """Cached prompt tokens expected at instances when they left, restarted or fell silent."""
    moved_tokens: int = 0
    """Cached prompt tokens expected at instances when they moved to another cell."""
    pool_tokens: int = 0
    """Capacity of its instances' KV caches, tokens."""
    decode_step_s: float = 0.0
    """Predicted time per token of a step with all decodes, seconds, mean over ready instances."""
