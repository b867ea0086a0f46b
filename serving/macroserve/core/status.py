"""Snapshots that routing and scaling decide from: plain data, pushed by instances and cells.

Structs and not dataclasses, which take five times as long to make: each batch makes some anew.
"""

from enum import StrEnum

import msgspec


class Phase(StrEnum):
    """What an instance works on (EcoServe, section 3.2: temporal disaggregation)."""

    IDLE = "idle"
    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"

    @classmethod
    def _missing_(cls, value: object) -> "Phase":
        """Take what an instance of a later version calls its work for MIXED."""
        return cls.MIXED


class Pool(StrEnum):
    """Which pool of its cell an instance belongs to (Ascendra, section 4)."""

    LP = "lp"
    """Low priority: works for throughput, out of order."""
    HP = "hp"
    """High priority: puts prefills first, takes urgent requests."""

    @classmethod
    def _missing_(cls, value: object) -> "Pool":
        """Take a pool of a later version for LP: its instances take whatever comes."""
        return cls.LP


class InstanceStatus(msgspec.Struct, frozen=True):
    """What an instance knows of itself after an iteration. Durations, never clock readings.

    seq: grows with every status of one incarnation, so that late ones are told apart.
    iterations: finished so far, those with nothing to run included.
    waiting_tokens: prompt tokens not yet prefilled. waiting_prefill_s: their predicted time.
    phase_prefill_s: predicted time of the prefills that arrived since the last switch to decode,
        done or not: the ``pending`` of EcoServe's Algorithm 2.
    saved_tpot_mean_s, saved_tpot_p10_s: slack of the decoding requests, (L-1)*TPOT - (now - first
        token), mean and tenth percentile; infinite when nothing decodes (sent as ``null``).
    queue_s_per_token: time in which the queue gets shorter by a token, as measured of late.
    remaining_tokens: predicted output tokens still owed to running and waiting requests.
    admitted: ids taken in since the last status, so that a scheduler stops counting them in flight.
    finished, attained: requests ended so far, and how many of them met their targets.
    """

    seq: int
    phase: Phase = Phase.IDLE
    num_waiting: int = 0
    num_running: int = 0
    num_decoding: int = 0
    waiting_tokens: int = 0
    waiting_prefill_s: float = 0.0
    phase_prefill_s: float = 0.0
    saved_tpot_mean_s: float | None = None
    saved_tpot_p10_s: float | None = None
    decode_step_s: float = 0.0
    prefill_s_per_token: float = 0.0
    queue_s_per_token: float = 0.0
    remaining_tokens: int = 0
    free_blocks: int = 0
    num_blocks: int = 0
    block_size: int = 16
    oldest_wait_s: float = 0.0
    admitted: tuple[str, ...] = ()
    finished: int = 0
    attained: int = 0
    draining: bool = False
    iterations: int = 0


UNHEARD = InstanceStatus(seq=-1, draining=True)
"""Until its first status an instance takes no requests; any status is newer."""


class InstanceView(msgspec.Struct, frozen=True):
    """An instance as its cell scheduler sees it: the last status plus decisions in flight.

    as_of_s: when the status arrived, on the cell scheduler's clock.
    max_num_seqs: requests that one batch there holds at most.
    in_flight_*: requests routed there that no status has acknowledged yet.
    on_trial: a request runs there under which instances broke before; others keep away.
    """

    name: str
    pool: Pool
    status: InstanceStatus
    as_of_s: float
    max_num_seqs: int
    in_flight_requests: int = 0
    in_flight_tokens: int = 0
    in_flight_prefill_s: float = 0.0
    in_flight_blocks: int = 0
    on_trial: bool = False

    @property
    def num_outstanding(self) -> int:
        """Requests that were routed there and have not ended."""
        status = self.status
        return status.num_waiting + status.num_running + self.in_flight_requests

    @property
    def heard(self) -> bool:
        """Whether the instance has sent a status."""
        return self.status is not UNHEARD


class CellView(msgspec.Struct, frozen=True):
    """A cell as the overall scheduler and the planner see it (sums over its instances).

    num_ready: instances that take requests: heard from, not draining.
    num_prefilling, num_decoding: running requests before and after their first token.
    num_waiting, waiting_prefill_s, free_blocks: decisions in flight counted as waiting.
    prefill_s_per_token: of its slowest instance.
    finished, attained: requests that ended in the cell since its scheduler began, and how many of
        them met their targets; neither ever falls.
    """

    name: str
    instances: tuple[str, ...]
    high_priority: tuple[str, ...] = ()
    num_ready: int = 0
    num_prefilling: int = 0
    num_decoding: int = 0
    num_waiting: int = 0
    num_running: int = 0
    waiting_prefill_s: float = 0.0
    prefill_s_per_token: float = 0.0
    free_blocks: int = 0
    num_blocks: int = 0
    finished: int = 0
    attained: int = 0
