"""How a deployment says that it stands: what the admin API answers and the operator reads, as JSON.

Durations only: the two ends may be on different machines.
"""

import msgspec

from macroserve.core.shapes import DeviceShape, ModelShape
from macroserve.core.views import CellView, InstanceStatus, Pool

IDENTITY_PATH = "/macroserve/identity"
"""Where an instance answers with its InstanceIdentity."""


class InstanceReport(msgspec.Struct, frozen=True):
    """One instance in a cell's report. age_s: of its last status. hybrid_cache: as its handle's."""

    name: str
    pool: Pool
    address: str
    status: InstanceStatus
    age_s: float
    in_flight: int
    draining: bool = False
    hybrid_cache: str = ""

    @property
    def idle(self) -> bool:
        """Nothing runs or waits there, and nothing is on its way."""
        return not (self.status.num_running + self.status.num_waiting + self.in_flight)


class CellReport(msgspec.Struct, frozen=True):
    """recent_*: of the last minute. decisions: routing decisions so far, by reason."""

    cell: CellView
    instances: tuple[InstanceReport, ...]
    recent_finished: int = 0
    recent_attained: int = 0
    decisions: dict[str, int] = {}


class Report(msgspec.Struct, frozen=True):
    """Of all cells that answered, by name."""

    cells: tuple[CellReport, ...]


class HeadReport(Report, frozen=True):
    """running: the cells that have a scheduler, whether it answered or not."""

    running: frozenset[str]


class InstanceIdentity(msgspec.Struct, frozen=True):
    """What an instance says of itself: its signed handle, and the cell that it belongs to."""

    name: str
    handle: str
    cell: str | None


class LoadBucket(msgspec.Struct, frozen=True):
    """Requests that were placed in one stretch of time. age_s: of its end."""

    age_s: float
    requests: int
    prompt_tokens: int
    output_tokens: int


class LoadReport(msgspec.Struct, frozen=True):
    """What was asked for lately.

    buckets: ``bucket_s`` long each, newest first, ten minutes of them.
    lengths: (prompt, output) tokens of a sample of recent requests; outputs as predicted at
        placement.
    coefficients, model, device: what an instance's latency model is made of; None before one was
        asked.
    """

    bucket_s: float
    buckets: tuple[LoadBucket, ...] = ()
    lengths: tuple[tuple[int, int], ...] = ()
    coefficients: tuple[float, ...] | None = None
    model: ModelShape | None = None
    device: DeviceShape | None = None
