"""A cell scheduler: which instance of the cell takes a request.

All its state is soft: the handles it holds, the statuses pushed to it, the decisions in flight.
Restarted, it asks the instances which of them are its own. It never sees a token.
"""

import asyncio
import collections
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import aiohttp
import msgspec
from aiohttp import WSMsgType, web

from macroserve.core.handle import HandleError, InstanceHandle, sign, verify
from macroserve.core.request import Slo
from macroserve.core.routing.decision import RouteRequest
from macroserve.core.routing.ledger import CellLedger
from macroserve.core.strategy import Strategy
from macroserve.core.views import InstanceStatus, Pool
from macroserve.serving import wire
from macroserve.serving.auth import TokenCheck, bearer
from macroserve.serving.link import InstanceLink

T = TypeVar("T")

SUMMARY_MIN_S = 0.1
"""Between two summaries, unless the members change: replies carry what matters in between."""
SUMMARY_MAX_S = 1.0
RECENT_S = 60
JOIN_TIMEOUT_S = 10.0


class CellScheduler:
    """The scheduler and its HTTP server.

    find_members: the identities of all living instances, to rebuild from.
    """

    def __init__(
        self,
        name: str,
        strategy: Strategy,
        slo: Slo,
        secret: str,
        find_members: Callable[[], Awaitable[list[wire.InstanceIdentity]]],
        host: str = "127.0.0.1",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._slo = slo
        self._secret = secret
        self._host = host
        self._find_members = find_members
        self._clock = clock
        self._ledger = CellLedger(strategy)
        self._links: dict[str, InstanceLink] = {}
        self._draining: frozenset[str] = frozenset()
        self._ingresses: dict[web.WebSocketResponse, str] = {}
        self._changed = asyncio.Event()
        self._urgent = asyncio.Event()
        self._members_changed = asyncio.Event()
        self._decisions: collections.Counter[str] = collections.Counter()
        self._history: collections.deque[tuple[int, int]] = collections.deque(maxlen=RECENT_S)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> str:
        """Listen, take back the instances that were ours; returns the base URL."""
        self._http = aiohttp.ClientSession(
            headers=bearer(self._secret), connector=aiohttp.TCPConnector(limit=0)
        )
        app = web.Application(middlewares=[_secret_only(self._secret)])
        app.add_routes(
            [
                web.get("/ingress", self._serve_ingress),
                web.get("/report", self._report),
                web.post("/adopt", self._adopt),
                web.post("/release", self._release),
                web.post("/pool", self._set_pool),
                web.post("/drain", self._drain),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, 0)
        await site.start()
        for identity in await self._find_members():
            if identity.cell == self._name:
                with contextlib.suppress(HandleError):
                    self._link(verify(identity.handle, self._secret.encode()))
        self._tasks = [
            asyncio.create_task(self._broadcast()),
            asyncio.create_task(self._keep_history()),
            asyncio.create_task(self._keep_told()),
        ]
        assert self._runner.addresses, "the cell's server listens"
        return f"http://{self._host}:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for link in self._links.values():
            await link.close()
        await self._runner.cleanup()
        await self._http.close()

    # -- members

    def _link(self, handle: InstanceHandle) -> InstanceLink:
        name = handle.name

        def on_status(status: InstanceStatus) -> None:
            if name not in self._ledger:
                self._take_in(link)
            self._ledger.observe(name, status, self._clock(), handle.incarnation)
            self._changed.set()

        link = InstanceLink(handle, self._name, self._http, on_status, self._lose_sight, self._lose)
        self._links[name] = link
        self._take_in(link)
        return link

    def _take_in(self, link: InstanceLink) -> None:
        handle = link.handle
        self._ledger.add(handle.name, handle.pool, handle.max_num_seqs, handle.incarnation)
        self._note_members()

    def _note_members(self) -> None:
        """Ingresses learn of it at once, instances too where it matters to them."""
        for event in (self._changed, self._urgent, self._members_changed):
            event.set()

    def _lose_sight(self, name: str) -> None:
        """Out of the rotation at once; its link goes on trying."""
        self._ledger.remove(name)
        self._note_members()

    def _lose(self, name: str) -> None:
        if self._links.pop(name, None):
            self._draining -= {name}
            self._ledger.remove(name)
            self._note_members()

    async def _adopt(self, request: web.Request) -> web.Response:
        order = await _order(request, wire.AdoptOrder)
        try:
            handle = verify(order.handle, self._secret.encode())
        except HandleError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        link = self._links.get(handle.name) or self._link(handle)
        if not await link.joined(JOIN_TIMEOUT_S):
            raise web.HTTPGatewayTimeout(text=f"{handle.name} sent no status")
        return web.json_response({})

    async def _release(self, request: web.Request) -> web.Response:
        order = await _order(request, wire.ReleaseOrder)
        link = self._member(order.name)
        self._lose(order.name)
        await link.close()
        return web.json_response({"handle": sign(link.handle, self._secret.encode())})

    async def _set_pool(self, request: web.Request) -> web.Response:
        order = await _order(request, wire.PoolOrder)
        link = self._member(order.name)
        await _taken(link.command("set_pool", order.pool))
        link.handle = replace(link.handle, pool=order.pool)
        self._ledger.set_pool(order.name, order.pool)
        self._note_members()
        return web.json_response({})

    async def _drain(self, request: web.Request) -> web.Response:
        order = await _order(request, wire.DrainOrder)
        link = self._member(order.name)
        names = {order.name}
        self._draining = self._draining | names if order.draining else self._draining - names
        await _taken(link.command("drain", order.draining))
        self._changed.set()
        return web.json_response({})

    def _member(self, name: str) -> InstanceLink:
        try:
            return self._links[name]
        except KeyError:
            raise web.HTTPNotFound(text=f"{name} is not in {self._name}") from None

    async def _keep_told(self) -> None:
        """Every instance knows whether there is an HP instance here to offload to."""
        while True:
            await self._members_changed.wait()
            self._members_changed.clear()
            allowed = any(view.pool is Pool.HP for view in self._ledger.views)
            links = [link for link in self._links.values() if link.may_offload != allowed]
            await asyncio.gather(*(self._tell(link, allowed) for link in links))

    async def _tell(self, link: InstanceLink, allowed: bool) -> None:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            await link.command("let_offload", allowed)
            link.may_offload = allowed

    # -- ingresses

    async def _serve_ingress(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(heartbeat=5, compress=False)
        await socket.prepare(request)
        self._ingresses[socket] = ""
        self._changed.set()
        try:
            async for message in socket:
                if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                    await self._answer(socket, wire.decode_to_cell(message.data))
        except msgspec.MsgspecError:
            await socket.close(code=1003)
        finally:
            del self._ingresses[socket]
        return socket

    async def _answer(self, socket: web.WebSocketResponse, message: wire.ToCell) -> None:
        match message:
            case wire.RouteQuery():
                await socket.send_bytes(wire.encode(self._route(message)))
            case wire.Settled(route_id=route_id):
                self._ledger.settle(route_id)
            case wire.Hello(address=address):
                self._ingresses[socket] = address
                self._changed.set()

    def _route(self, query: wire.RouteQuery) -> wire.RouteReply:
        now = self._clock()
        request = RouteRequest(
            query.request(now),
            query.predicted_new_tokens,
            query.offloaded,
            self._draining.union(query.exclude),
        )
        decision = self._ledger.assign(request, now)
        self._decisions[decision.reason] += 1
        instance = decision.instance
        if instance and not (decision.satisfied or query.force):
            self._ledger.settle(query.route_id)
            instance = None
        return wire.RouteReply(
            query.route_id,
            instance,
            self._ledger.waiting_prefill_s,
            self._links[instance].handle.address if instance else "",
            decision.reason,
        )

    async def _broadcast(self) -> None:
        while True:
            await _wait(self._changed, SUMMARY_MAX_S)
            self._changed.clear()
            self._urgent.clear()
            summary = wire.encode(self._summary())
            for socket in list(self._ingresses):
                with contextlib.suppress(ConnectionError, RuntimeError):
                    await socket.send_bytes(summary)
            await _wait(self._urgent, SUMMARY_MIN_S)

    def _summary(self) -> wire.CellSummary:
        members = tuple(
            wire.Member(link.handle.name, link.handle.address, link.handle.pool)
            for view in self._ledger.views
            if (link := self._links[view.name])
        )
        return wire.CellSummary(
            self._ledger.cell_view(self._name),
            members,
            self._late(),
            tuple(filter(None, self._ingresses.values())),
        )

    def _late(self) -> bool:
        """Whether whatever comes now waits longer than its TTFT target for its prefill."""
        waits = [
            view.status.waiting_prefill_s + view.in_flight_prefill_s for view in self._ledger.views
        ]
        return bool(waits) and min(waits) > self._slo.ttft_s

    # -- reports

    async def _keep_history(self) -> None:
        while True:
            view = self._ledger.cell_view(self._name)
            self._history.append((view.finished, view.attained))
            await asyncio.sleep(1)

    async def _report(self, request: web.Request) -> web.Response:
        now = self._clock()
        view = self._ledger.cell_view(self._name)
        instances = tuple(
            wire.InstanceReport(
                name=instance.name,
                pool=instance.pool,
                address=self._links[instance.name].handle.address,
                status=instance.status,
                age_s=now - instance.as_of_s,
                in_flight=instance.in_flight_requests,
                draining=instance.name in self._draining,
            )
            for instance in self._ledger.views
        )
        finished, attained = self._history[0] if self._history else (0, 0)
        report = wire.CellReport(
            view,
            instances,
            max(0, view.finished - finished),
            max(0, view.attained - attained),
            dict(self._decisions),
        )
        return web.Response(body=wire.encode(report), content_type="application/json")


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


async def _order(request: web.Request, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except msgspec.MsgspecError as error:
        raise web.HTTPBadRequest(text=str(error)) from error


async def _taken(command: Awaitable[None]) -> None:
    try:
        await command
    except (aiohttp.ClientError, TimeoutError) as error:
        raise web.HTTPBadGateway(text=f"the instance did not take the order: {error}") from error


def _secret_only(secret: str):
    check = TokenCheck([secret])

    @web.middleware
    async def middleware(request: web.Request, handler):
        if not check.allows(request.headers):
            raise web.HTTPUnauthorized(text="not authorized")
        return await handler(request)

    return middleware
