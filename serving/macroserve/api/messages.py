"""Messages between ingresses, cell schedulers and instances: typed JSON, never pickled.

Times are durations, because the two ends may be on different machines.
"""

from collections.abc import Collection
from typing import Any, Generic, TypeVar, Union

import msgspec

from macroserve.core.instance_start import InstanceStart
from macroserve.core.request import DEFAULT_CLASS, Request, Slo
from macroserve.core.routing.attempts import InstanceRun
from macroserve.core.routing.decision import RouteRequest
from macroserve.core.routing.prefixes import BOUNDARIES
from macroserve.core.routing.queue_wait import LeastWaits
from macroserve.core.shapes import DeviceShape, ModelShape
from macroserve.core.status import UNHEARD, CellView, Ended, InstanceStatus, Pool

_T = TypeVar("_T")

# Paths of an instance's control server, see ``serving.instance.server``.
STATUS_PATH = "/macroserve/status"
COMMAND_PATH = "/macroserve/command"
PROBE = "probe"
"""Command to generate one token."""
HEARTBEAT_S = 1.0
"""Time after which an unchanged status is sent again, seconds."""
PREFIX_KEY_BYTES = 6
"""Bytes of a key: all keys of the longest prompt are half a kilobyte in JSON."""
SESSION_KEY_BYTES = 6


class RequestInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a request that an ingress sends to a cell and to an instance."""

    route_id: str
    """ID of this attempt; the cell scheduler counts it until the instance reports it."""
    age_s: float
    """Time since the ingress accepted the request, seconds."""
    slo: Slo
    num_streamed_tokens: int = 0
    """Tokens of the prompt that an earlier instance had already streamed."""
    slo_class: str = DEFAULT_CLASS
    probe: bool = False
    """See ``core.request.Request``."""

    def to_request(
        self,
        request_id: str,
        num_prompt_tokens: int,
        max_new_tokens: int,
        now: float,
        adapter: str | None = None,
    ) -> Request:
        """Return the request as policies see it, on the clock that reads ``now``."""
        return Request(
            request_id=request_id,
            arrival_s=now - self.age_s,
            num_prompt_tokens=num_prompt_tokens,
            max_new_tokens=max_new_tokens,
            slo=self.slo,
            num_streamed_tokens=self.num_streamed_tokens,
            probe=self.probe,
            route_id=self.route_id,
            adapter=adapter,
            slo_class=self.slo_class,
        )


class Placement(msgspec.Struct, frozen=True):
    """A request that a cell took, by what brings similar ones to the same cell."""

    num_prompt_tokens: int
    prefix: bytes = b""
    """As in ``RouteQuery``."""
    session: bytes = b""

    @property
    def prefix_keys(self) -> tuple[int, ...]:
        """Return the keys; none if their number or size is invalid."""
        size = PREFIX_KEY_BYTES
        if len(self.prefix) % size or len(self.prefix) > size * len(BOUNDARIES):
            return ()
        starts = range(0, len(self.prefix), size)
        return tuple([int.from_bytes(self.prefix[start : start + size]) for start in starts])

    @property
    def session_key(self) -> int | None:
        """Return the key; None if its size is invalid."""
        known = len(self.session) == SESSION_KEY_BYTES
        return int.from_bytes(self.session) if known else None


class RouteQuery(msgspec.Struct, frozen=True, kw_only=True, tag="route"):
    """A query for the instance that should run a request."""

    info: RequestInfo
    num_prompt_tokens: int
    max_new_tokens: int
    predicted_new_tokens: int
    exclude: tuple[str, ...] = ()
    """Names of instances that just failed it."""
    offloaded: bool = False
    """Whether an LP instance handed it back for urgency."""
    trial: bool = False
    """Whether this is its last attempt, after instances failed while running it."""
    adapter: str | None = None
    """Name of its LoRA adapter."""
    prefix: bytes = b""
    """Keys of its prompt's prefixes, PREFIX_KEY_BYTES each; see ``core.routing.prefixes``."""
    session: bytes = b""
    """Key of the session that its client names, SESSION_KEY_BYTES; empty for none."""
    ignore_constraints: bool = msgspec.field(default=True, name="force")
    """Whether to take the best instance even if no constraint can be met."""

    @property
    def placement(self) -> Placement:
        return Placement(self.num_prompt_tokens, self.prefix, self.session)

    def to_route_request(self, now: float, exclude: Collection[str] = ()) -> RouteRequest:
        """Return the request as routing sees it, on the clock that reads ``now``.

        exclude: further instances that must not get it.
        """
        sizes = (self.num_prompt_tokens, self.max_new_tokens)
        placement = self.placement
        return RouteRequest(
            self.info.to_request(self.info.route_id, *sizes, now, adapter=self.adapter),
            self.predicted_new_tokens,
            self.offloaded,
            frozenset(self.exclude).union(exclude),
            trial=self.trial,
            prefix=placement.prefix_keys,
            session=placement.session_key,
        )

    @property
    def first(self) -> bool:
        """Return whether no instance has had the request yet."""
        return not (self.info.num_streamed_tokens or self.exclude or self.offloaded)


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """Notice that an attempt will not reach its instance, or that its trial is over."""

    route_id: str
    explained: tuple[InstanceRun, ...] = ()
    """Failures of instances that this request caused."""


class RouteReply(msgspec.Struct, frozen=True, tag="reply"):
    route_id: str
    instance: str | None
    """None if the cell has no instance, or none that meets the constraints."""
    waiting_prefill_s: float
    """Predicted prefill time of the cell's waiting requests, including this one, seconds."""
    address: str = ""
    reason: str = ""
    incarnation: int = 0
    queue_wait_s: float | None = None
    """Wait in the cell's queue, including this request, seconds."""


class CellMember(msgspec.Struct, frozen=True):
    """An instance as its cell describes it to ingresses."""

    name: str
    address: str
    pool: Pool
    incarnation: int = 0
    draining: bool = False
    """Whether it is about to leave."""

    @property
    def run(self) -> InstanceRun:
        return InstanceRun(self.name, self.incarnation)


class CellSummary(msgspec.Struct, frozen=True, tag="summary"):
    """State of a cell, sent to its ingresses on change and once a second."""

    cell: CellView
    members: tuple[CellMember, ...] = ()
    late: bool = False
    """Whether every queue of the cell is past its TTFT target."""
    utilization: float = msgspec.field(default=0.0, name="busy")
    """Recent share of its instances' time spent with work (``busy`` on the wire)."""
    ingresses: tuple[str, ...] = ()
    explained: tuple[InstanceRun, ...] = ()
    """Failures of instances that one known request caused."""
    queue_wait_s: float | None = None
    """Predicted time until all waiting requests have started, seconds; None without instances."""
    least_waits: LeastWaits = ()
    """Waits of a request that arrives now; empty without an instance."""


class PrefixesMoved(msgspec.Struct, frozen=True, tag="prefixes_moved"):
    """Notice to ingresses that an instance brought or took away cached prefixes."""

    came: bool
    prefixes: Any
    """Packed by ``api.held_prefixes``."""


class Placed(msgspec.Struct, frozen=True, tag="placed"):
    """Notice to an ingress of the requests that its cell took from others, with which it routes
    like them."""

    placements: tuple[Placement, ...]


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of an ingress to a cell."""

    address: str
    """Address at which other ingresses read its metrics."""


class CommandOrder(msgspec.Struct, frozen=True):
    """Order to an instance's engine: see ``engine.engine.Engine.command``."""

    verb: str
    argument: str | bool | None = None


class LatencyAnswer(msgspec.Struct, frozen=True):
    """Latency model of an instance, and the limits of its batches."""

    model: ModelShape
    device: DeviceShape
    coefficients: tuple[float, ...]
    max_num_seqs: int | None = None
    max_batch_tokens: int | None = None


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Requests that an ingress refused without a routing query, reported to one cell only."""

    by_reason: dict[str, int]


ToCell = RouteQuery | Settled | Hello | Refused
ToIngress = RouteReply | CellSummary | PrefixesMoved | Placed

encode = msgspec.json.Encoder().encode


class _Kind(msgspec.Struct, frozen=True):
    type: str


class _Decoder(Generic[_T]):
    """Decoder of the messages of one direction.

    The other end may have another version: unknown fields are ignored, and missing ones and unknown
        enum values have defaults.
    """

    def __init__(self, *kinds: type[msgspec.Struct]) -> None:
        self._decode = msgspec.json.Decoder(Union[kinds]).decode  # noqa: UP007 - of a tuple
        self._known = {kind.__struct_config__.tag for kind in kinds}

    def decode(self, data: bytes | str) -> _T | None:
        """Return the message; None for an unknown kind. Raises msgspec.MsgspecError."""
        try:
            return self._decode(data)
        except msgspec.ValidationError:
            if msgspec.json.decode(data, type=_Kind).type in self._known:
                raise
            return None


decode_to_cell = _Decoder[ToCell](RouteQuery, Settled, Hello, Refused).decode
decode_to_ingress = _Decoder[ToIngress](RouteReply, CellSummary, PrefixesMoved, Placed).decode


ADMIN_PREFIX = "/admin/v1"


class AdoptOrder(msgspec.Struct, frozen=True):
    """Order to adopt a signed handle, and the response to a release."""

    handle: str
    prefixes: Any = ""
    """The instance's prefixes, packed by ``api.held_prefixes``."""


class ReleaseOrder(msgspec.Struct, frozen=True):
    name: str


class PoolOrder(msgspec.Struct, frozen=True):
    """Order to change an instance's pool; ``Pool`` reads unknown pools as LP, so they are
    refused."""

    name: str
    pool: str

    def __post_init__(self) -> None:
        if self.pool not in list(Pool):
            raise ValueError(f"pool must be one of {', '.join(Pool)}")


class DrainOrder(msgspec.Struct, frozen=True):
    name: str
    draining: bool


class MigrateOrder(msgspec.Struct, frozen=True):
    """Order to move an instance from cell ``source`` to cell ``target``."""

    instance: str
    source: str
    target: str


IDENTITY_PATH = "/macroserve/identity"
"""Path of an instance's InstanceIdentity."""


class InstanceReport(msgspec.Struct, frozen=True):
    name: str
    pool: Pool
    address: str
    status: InstanceStatus
    age_s: float
    """Age of the last status, seconds."""
    in_flight: int
    draining: bool = False
    hybrid_cache: str = ""
    """As in its handle."""
    prefix_caching: str = ""
    """As in its handle."""
    start: InstanceStart | None = None
    """As in its handle."""

    @property
    def heard(self) -> bool:
        """Return whether the instance has sent a status."""
        return self.status != UNHEARD

    @property
    def idle(self) -> bool:
        """Return whether no request runs, waits or is in flight."""
        return not (self.status.num_running + self.status.num_waiting + self.in_flight)


class CellReport(msgspec.Struct, frozen=True):
    """Requests and instances of a cell; ``recent_*`` cover the last minute."""

    cell: CellView
    instances: tuple[InstanceReport, ...]
    recent_finished: int = 0
    recent_attained: int = 0
    decisions: dict[str, int] = {}
    """Routing decisions so far, by reason."""
    recent_prompt_tokens: int = 0
    recent_cached_tokens: int = 0
    recent_decodes: int = 0
    recent_decoded_tokens: int = 0
    recent_by_class: dict[str, Ended] = {}
    """Finished requests of all SLO classes other than the default."""
    recent_refused: dict[str, int] = {}
    """Refusals by ``RouteDecision.refusal``: the cell's and those that ingresses reported."""


class Report(msgspec.Struct, frozen=True):
    """Reports of all cells that answered, by name."""

    cells: tuple[CellReport, ...]


class HeadReport(Report, frozen=True):
    running: frozenset[str]
    """Cells that have a scheduler, whether or not it answered."""


class InstanceIdentity(msgspec.Struct, frozen=True):
    """An instance's signed handle and the cell that it belongs to."""

    name: str
    handle: str
    cell: str | None
