"""Messages between ingresses, cell schedulers and instances: JSON, typed, never pickled.

Durations only: the two ends may be on different machines.
"""

from typing import Generic, TypeVar, Union

import msgspec

from macroserve.core.request import Request, Slo
from macroserve.core.routing.attempts import Run
from macroserve.core.shapes import DeviceShape, ModelShape
from macroserve.core.status import CellView, InstanceStatus, Pool

_T = TypeVar("_T")

# Of an instance's server, see ``instance``.
STATUS_PATH = "/macroserve/status"
COMMAND_PATH = "/macroserve/command"
PROBE = "probe"
"""The order to generate one token."""
HEARTBEAT_S = 1.0
"""A status is repeated when nothing has happened for so long."""


class RouteQuery(msgspec.Struct, frozen=True, tag="route"):
    """An ingress asks a cell where a request should run.

    exclude: instances that just failed it. offloaded: an LP instance handed it back for urgency.
    trial: instances broke under it; this is its last attempt.
    ignore_constraints: take the best instance even if no constraint can be met (``force`` on the
    wire).
    """

    route_id: str
    age_s: float
    num_prompt_tokens: int
    max_new_tokens: int
    predicted_new_tokens: int
    slo: Slo
    num_streamed_tokens: int = 0
    exclude: tuple[str, ...] = ()
    offloaded: bool = False
    trial: bool = False
    ignore_constraints: bool = msgspec.field(default=True, name="force")

    @property
    def first(self) -> bool:
        """Whether no instance has had the request yet."""
        return not (self.num_streamed_tokens or self.exclude or self.offloaded)

    def request(self, now: float) -> Request:
        return Request(
            request_id=self.route_id,
            arrival_s=now - self.age_s,
            num_prompt_tokens=self.num_prompt_tokens,
            max_new_tokens=self.max_new_tokens,
            slo=self.slo,
            num_streamed_tokens=self.num_streamed_tokens,
        )


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """The attempt will not arrive at its instance, or its trial is over: stop counting it.

    explained: runs of instances that broke because of it.
    """

    route_id: str
    explained: tuple[Run, ...] = ()


class RouteReply(msgspec.Struct, frozen=True, tag="reply"):
    """instance is None when the cell has none to offer (or none that meets the constraints).

    waiting_prefill_s, queue_wait_s: the cell's, with this decision counted.
    """

    route_id: str
    instance: str | None
    waiting_prefill_s: float
    address: str = ""
    reason: str = ""
    incarnation: int = 0
    queue_wait_s: float | None = None


class Member(msgspec.Struct, frozen=True):
    """draining: it is about to leave."""

    name: str
    address: str
    pool: Pool
    incarnation: int = 0
    draining: bool = False

    @property
    def run(self) -> Run:
        return Run(self.name, self.incarnation)


class CellSummary(msgspec.Struct, frozen=True, tag="summary"):
    """A cell scheduler tells its ingresses how it stands, on change and once a second.

    late: every queue of the cell is past its TTFT target. utilization: share of its instances'
    time, of late, in which they had work (``busy`` on the wire). explained: runs of instances that
    broke because of one request, which is known. queue_wait_s: predicted time until what waits has
    begun; None without an instance that takes requests.
    """

    cell: CellView
    members: tuple[Member, ...] = ()
    late: bool = False
    utilization: float = msgspec.field(default=0.0, name="busy")
    ingresses: tuple[str, ...] = ()
    explained: tuple[Run, ...] = ()
    queue_wait_s: float | None = None


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """An ingress introduces itself: where its peers can read its own metrics."""

    address: str


class CommandOrder(msgspec.Struct, frozen=True):
    """To an instance's engine: see ``engine.engine.Engine.command``."""

    verb: str
    argument: str | bool | None = None


class LatencyAnswer(msgspec.Struct, frozen=True):
    """What an instance's latency model is made of."""

    model: ModelShape
    device: DeviceShape
    coefficients: tuple[float, ...]


ToCell = RouteQuery | Settled | Hello
ToIngress = RouteReply | CellSummary

encode = msgspec.json.Encoder().encode


class _Kind(msgspec.Struct, frozen=True):
    type: str


class _Decoder(Generic[_T]):
    """Messages of one direction. The other end may be of another version: fields that are not
    known are ignored, those that are missing have defaults, and so have unknown words of enums."""

    def __init__(self, *kinds: type[msgspec.Struct]) -> None:
        self._decode = msgspec.json.Decoder(Union[kinds]).decode  # noqa: UP007 - of a tuple
        self._known = {kind.__struct_config__.tag for kind in kinds}

    def decode(self, data: bytes | str) -> _T | None:
        """None for a message of a kind that is not known. Raises msgspec.MsgspecError."""
        try:
            return self._decode(data)
        except msgspec.ValidationError:
            if msgspec.json.decode(data, type=_Kind).type in self._known:
                raise
            return None


decode_to_cell = _Decoder[ToCell](RouteQuery, Settled, Hello).decode
decode_to_ingress = _Decoder[ToIngress](RouteReply, CellSummary).decode


ADMIN_PREFIX = "/admin/v1"
"""Every path of the admin API begins with this."""


class AdoptOrder(msgspec.Struct, frozen=True):
    """handle: signed. It is also the answer to a release."""

    handle: str


class ReleaseOrder(msgspec.Struct, frozen=True):
    name: str


class PoolOrder(msgspec.Struct, frozen=True):
    """pool: one that is known, since ``Pool`` takes unknown ones for LP."""

    name: str
    pool: str

    def __post_init__(self) -> None:
        if self.pool not in list(Pool):
            raise ValueError(f"pool must be one of {', '.join(Pool)}")


class DrainOrder(msgspec.Struct, frozen=True):
    name: str
    draining: bool


class MigrateOrder(msgspec.Struct, frozen=True):
    """source, target: cells."""

    instance: str
    source: str
    target: str


IDENTITY_PATH = "/macroserve/identity"
"""An instance answers here with its InstanceIdentity."""


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
    """A report has all cells that answered, by name."""

    cells: tuple[CellReport, ...]


class HeadReport(Report, frozen=True):
    """running: the cells that have a scheduler, whether it answered or not."""

    running: frozenset[str]


class InstanceIdentity(msgspec.Struct, frozen=True):
    """An instance tells its signed handle and the cell that it belongs to."""

    name: str
    handle: str
    cell: str | None
