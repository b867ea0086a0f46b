"""The cell scheduler, which chooses an instance of its cell for each request.

All its state is soft: instance handles, their latest statuses, decisions in flight. After a restart
it asks the instances which of them belong to the cell. It never sees a token.
"""

import asyncio
import collections
import contextlib
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import aiohttp
import msgspec

from macroserve.api import messages
from macroserve.api.handle import HandleError, InstanceHandle, sign, verify
from macroserve.api.held_prefixes import pack_held, unpack_held
from macroserve.api.logs import get_logger
from macroserve.api.messages import AdoptOrder, CellReport, InstanceIdentity, InstanceReport
from macroserve.core.request import Slo
from macroserve.core.routing.attempts import InstanceRun
from macroserve.core.routing.ledger import CellLedger
from macroserve.core.routing.prefixes import HeldKey
from macroserve.core.routing.queue_wait import is_late
from macroserve.core.scaling.load import LoadReport
from macroserve.core.scaling.load_recorder import LoadRecorder
from macroserve.core.status import CellView, Ended, InstanceStatus, Pool
from macroserve.core.strategy import Strategy
from macroserve.serving.background import BackgroundTasks
from macroserve.serving.cell.instance_connection import InstanceConnection
from macroserve.serving.cell.utilization import UtilizationMeter
from macroserve.serving.security.calls import session
from macroserve.serving.security.key_source import LiveKeys

log = get_logger(__name__)

RECENT_S = 60
JOIN_TIMEOUT_S = 10.0
LATENCY_TIMEOUT_S = 1.0
TELL_AGAIN_S = 0.5
MAX_EXPLAINED = 64
"""Latest breaks of known cause in each summary."""
MAX_TOLD_KEYS = 1 << 12
"""Most recent keys of a moved instance that are sent to the ingresses: reading them blocks an
ingress for some milliseconds."""


class UnknownInstanceError(LookupError):
    """A name that no instance of the cell has."""


class CellScheduler:
    """Connections to the instances of a cell, and the routing of requests to them.

    changed: set whenever the summary changes.
    members_changed: set whenever the members change.
    """

    def __init__(
        self,
        name: str,
        strategy: Strategy,
        slo: Slo,
        keys: LiveKeys,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.changed = asyncio.Event()
        self.members_changed = asyncio.Event()
        self._slo = slo
        self._keys = keys
        self._clock = clock
        self._wall_clock = wall_clock
        self._ledger = CellLedger(strategy)
        self._connections: dict[str, InstanceConnection] = {}
        self._draining: frozenset[str] = frozenset()
        self._pools_changed = asyncio.Event()
        self._decisions: collections.Counter[str] = collections.Counter()
        self._history: collections.deque[tuple[CellView, Mapping[str, int]]] = collections.deque(
            maxlen=RECENT_S
        )
        self._explained: collections.deque[InstanceRun] = collections.deque(maxlen=MAX_EXPLAINED)
        self._utilization = UtilizationMeter()
        self._load = LoadRecorder(clock(), random.Random())
        self._moves: list[messages.PrefixesMoved] = []
        self._http = session(keys, {"limit": 0})
        self._tasks = BackgroundTasks()

    async def start(self, identities: Iterable[InstanceIdentity]) -> None:
        """Reconnect to the instances that belong to this cell."""
        for identity in identities:
            if identity.cell == self.name:
                with contextlib.suppress(HandleError):
                    self._connect(self._verified(identity.handle))
        self._tasks.start("history", self._keep_history())
        self._tasks.start("offload permissions", self._sync_offload_permission())

    def check(self) -> None:
        """Raise RuntimeError when the scheduler can no longer route."""
        self._tasks.check()
        for connection in self._connections.values():
            connection.check()

    async def stop(self) -> None:
        await self._tasks.stop()
        for connection in list(self._connections.values()):
            await connection.close()
        await self._http.close()

    # -- orders

    async def adopt(self, signed_handle: str, prefixes: object = "") -> bool:
        """Add an instance; return whether it sent a status in time. Raises HandleError.

        prefixes: see ``messages.AdoptOrder``; ignored if it cannot be read.
        """
        handle = self._verified(signed_handle)
        connection = self._connections.get(handle.name)
        if connection is not None and connection.handle.incarnation < handle.incarnation:
            # The earlier instance of that name is gone, even if its connection is still open.
            self._lose(handle.name)
            await connection.close()
            connection = None
        if connection is None:
            connection = self._connect(handle)
            self._take_prefixes(handle.name, prefixes)
        return await connection.joined(JOIN_TIMEOUT_S)

    async def release(self, name: str) -> AdoptOrder:
        """Remove an instance; return the order that lets another cell adopt it, with a freshly
        signed handle and the instance's prefixes."""
        connection = self._member(name)
        log.info("instance released", cell=self.name, instance=name)
        held = self._ledger.release(name)
        self._tell_moved(held, came=False)
        prefixes = pack_held(held)
        self._lose(name)
        await connection.close()
        handle = sign(connection.handle, self._keys.ring, self._wall_clock())
        return AdoptOrder(handle, prefixes)

    async def set_pool(self, name: str, pool: Pool) -> None:
        """Move an instance to another pool. Raises aiohttp.ClientError or TimeoutError if the
        instance does not accept the command."""
        connection = self._member(name)
        await connection.command("set_pool", pool)
        connection.handle = replace(connection.handle, pool=pool)
        self._ledger.set_pool(name, pool)
        self._note_members()

    async def drain(self, name: str, draining: bool) -> None:
        """Start or stop draining an instance. Raises aiohttp.ClientError or TimeoutError if the
        instance does not accept the command; it is excluded from routing in any case."""
        connection = self._member(name)
        self._draining = self._draining | {name} if draining else self._draining - {name}
        self.changed.set()
        await connection.command("drain", draining)

    def _take_prefixes(self, name: str, prefixes: object) -> None:
        try:
            held = unpack_held(prefixes)
        except ValueError as error:
            log.warning("prefix record ignored", cell=self.name, instance=name, reason=str(error))
            return
        self._ledger.take_prefixes(name, held)
        self._tell_moved(held, came=True)

    def _tell_moved(self, held: Sequence[HeldKey], *, came: bool) -> None:
        if held:
            self._moves.append(messages.PrefixesMoved(came, pack_held(held[-MAX_TOLD_KEYS:])))
            self.changed.set()

    def take_moves(self) -> list[messages.PrefixesMoved]:
        """Return and clear the moves of prefixes that have not been sent to the ingresses."""
        moves, self._moves = self._moves, []
        return moves

    def _verified(self, signed_handle: str) -> InstanceHandle:
        return verify(signed_handle, self._keys.ring, self._wall_clock())

    def _member(self, name: str) -> InstanceConnection:
        try:
            return self._connections[name]
        except KeyError:
            raise UnknownInstanceError(f"{name} is not in {self.name}") from None

    # -- decisions

    def route(self, query: messages.RouteQuery) -> messages.RouteReply:
        now = self._clock()
        request = query.to_route_request(now, self._draining)
        decision = self._ledger.assign(request, now, ignore_constraints=query.ignore_constraints)
        self._decisions[decision.reason] += 1
        instance = decision.instance
        if instance and query.first and not query.info.probe:
            num_to_compute = query.num_prompt_tokens - decision.num_cached
            slo_class = query.info.slo_class
            self._load.add(num_to_compute, query.predicted_new_tokens, now, slo_class)
        handle = self._connections[instance].handle if instance else None
        return messages.RouteReply(
            query.info.route_id,
            instance,
            self._ledger.waiting_prefill_s,
            handle.address if handle else "",
            decision.reason,
            handle.incarnation if handle else 0,
            self._ledger.queue_wait_s,
        )

    def settle(self, route_id: str, explained: tuple[InstanceRun, ...] = ()) -> None:
        """Stop counting an attempt (see ``messages.Settled``)."""
        self._ledger.settle(route_id)
        if explained:
            self._explained.extend(explained)
            self.changed.set()

    def note_refused(self, by_reason: Mapping[str, int]) -> None:
        """Count requests that an ingress refused without a routing query."""
        self._ledger.note_refused(by_reason)

    # -- reports

    def summary(self, ingresses: Iterable[str]) -> messages.CellSummary:
        members = tuple(
            messages.CellMember(
                view.name,
                self._connections[view.name].handle.address,
                view.pool,
                self._connections[view.name].handle.incarnation,
                view.heard and view.status.draining,
            )
            for view in self._ledger.views
        )
        cell = self._ledger.cell_view(self.name)
        return messages.CellSummary(
            cell,
            members,
            is_late(self._ledger.least_waits, self._slo.ttft_s),
            self._utilization.share,
            tuple(ingresses),
            explained=tuple(self._explained),
            queue_wait_s=self._ledger.queue_wait_s,
            least_waits=self._ledger.least_waits,
        )

    def report(self) -> CellReport:
        now = self._clock()
        cell = self._ledger.cell_view(self.name)
        instances = tuple(
            InstanceReport(
                name=view.name,
                pool=view.pool,
                address=self._connections[view.name].handle.address,
                status=view.status,
                age_s=now - view.as_of_s,
                in_flight=view.in_flight_requests,
                draining=view.heard and view.status.draining,
                hybrid_cache=self._connections[view.name].handle.hybrid_cache,
                prefix_caching=self._connections[view.name].handle.prefix_caching,
                start=self._connections[view.name].handle.start,
            )
            for view in self._ledger.views
        )
        before, refused = self._history[0] if self._history else (CellView(self.name, ()), {})
        return CellReport(
            cell,
            instances,
            cell.finished - before.finished,
            cell.attained - before.attained,
            dict(self._decisions),
            cell.prompt_tokens - before.prompt_tokens,
            cell.cached_tokens - before.cached_tokens,
            cell.decodes - before.decodes,
            cell.decoded_tokens - before.decoded_tokens,
            {
                slo_class: ended - before.ended_by_class.get(slo_class, Ended())
                for slo_class, ended in cell.ended_by_class.items()
            },
            {
                reason: num - refused.get(reason, 0)
                for reason, num in self._ledger.refused.items()
                if num > refused.get(reason, 0)
            },
        )

    async def load(self) -> LoadReport:
        """Return the load, with the latency model of the first instance that answers."""
        report = self._load.report(self._clock())
        answers = await asyncio.gather(*map(self._latency, self._connections.values()))
        told = next(filter(None, answers), None)
        return msgspec.structs.replace(report, **msgspec.structs.asdict(told)) if told else report

    async def _latency(self, connection: InstanceConnection) -> messages.LatencyAnswer | None:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, msgspec.MsgspecError):
            async with asyncio.timeout(LATENCY_TIMEOUT_S):
                return msgspec.convert(await connection.command("latency"), messages.LatencyAnswer)
        return None

    async def _keep_history(self) -> None:
        while True:
            self._history.append((self._ledger.cell_view(self.name), self._ledger.refused))
            self._utilization.tick(self._clock())
            await asyncio.sleep(1)

    # -- members

    def _connect(self, handle: InstanceHandle) -> InstanceConnection:
        name = handle.name

        def on_status(status: InstanceStatus) -> None:
            if name not in self._ledger:
                log.info("instance reconnected", cell=self.name, instance=name)
                self._take_in(connection)
            self._ledger.observe(name, status, self._clock(), handle.incarnation)
            working = status.num_running + status.num_waiting > 0
            self._utilization.observe(name, working, self._clock())
            self.changed.set()

        connection = InstanceConnection(
            handle, self.name, self._http, on_status, self._on_silent, self._on_lost
        )
        self._connections[name] = connection
        log.info(
            "instance joined",
            cell=self.name,
            instance=name,
            pool=handle.pool.value,
            incarnation=handle.incarnation,
        )
        self._take_in(connection)
        return connection

    def _take_in(self, connection: InstanceConnection) -> None:
        handle = connection.handle
        self._ledger.add(handle.name, handle.pool, handle.max_num_seqs, handle.incarnation)
        self._note_members()

    def _on_silent(self, name: str) -> None:
        if name in self._ledger:
            log.warning("instance timed out", cell=self.name, instance=name)
        self._lose_sight(name)

    def _on_lost(self, name: str) -> None:
        log.warning("instance lost", cell=self.name, instance=name)
        self._lose(name)

    def _lose_sight(self, name: str) -> None:
        """Take an instance out of the rotation while its connection keeps trying."""
        self._ledger.remove(name)
        self._utilization.forget(name)
        self._note_members()

    def _lose(self, name: str) -> None:
        if self._connections.pop(name, None):
            self._draining -= {name}
            self._lose_sight(name)

    def _note_members(self) -> None:
        for event in (self.changed, self.members_changed, self._pools_changed):
            event.set()

    async def _sync_offload_permission(self) -> None:
        """Send every instance whether the cell has an HP instance to offload to."""
        while True:
            await self._pools_changed.wait()
            self._pools_changed.clear()
            allowed = any(view.pool is Pool.HP for view in self._ledger.views)
            connections = [
                connection
                for connection in self._connections.values()
                if connection.may_offload != allowed
            ]
            await asyncio.gather(
                *(self._send_offload_permission(connection, allowed) for connection in connections)
            )

    async def _send_offload_permission(self, connection: InstanceConnection, allowed: bool) -> None:
        try:
            await connection.command("let_offload", allowed)
            connection.may_offload = allowed
        except (aiohttp.ClientError, TimeoutError):
            await asyncio.sleep(TELL_AGAIN_S)
            self._pools_changed.set()
