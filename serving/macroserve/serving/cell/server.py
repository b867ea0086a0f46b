"""The HTTP server of a cell scheduler, for calls with a token for it (``calls``).

``GET /ingress`` is a WebSocket with routing queries and replies, and summaries of the cell.
``GET /report``, ``GET /load`` and ``POST /{adopt,release,pool,drain}`` serve the admin API.
"""

import asyncio
import contextlib
import errno
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
import msgspec
from aiohttp import WSMsgType, web

from macroserve.api import messages
from macroserve.api.access_token import Audience
from macroserve.api.handle import HandleError
from macroserve.api.keys import Purpose
from macroserve.api.logs import get_logger
from macroserve.api.messages import AdoptOrder, DrainOrder, Placement, PoolOrder, ReleaseOrder
from macroserve.core.status import Pool
from macroserve.serving.background import BackgroundTasks
from macroserve.serving.cell.scheduler import CellScheduler, UnknownInstanceError
from macroserve.serving.security.call_guard import Handler, guard
from macroserve.serving.security.key_source import LiveKeys
from macroserve.serving.security.tls import base_url

log = get_logger(__name__)

T = TypeVar("T")

SUMMARY_MIN_S = 0.1
"""Shortest time between two summaries; routing replies carry the essentials in between."""
SUMMARY_MAX_S = 1.0
PLACED_MIN_S = 0.02
"""Shortest time between two notices of placed requests; the next turn of an agent comes soon."""
MAX_PLACED = 256
"""Most requests in one notice to an ingress, as reading them blocks it for milliseconds."""
INGRESS_PATH = "/ingress"
SEND_TIMEOUT_S = 2.0
"""Time after which an ingress that does not read is disconnected, as it delays the others."""


def cell_ports(cell: str, ports: range) -> list[int]:
    """Return the ports in the order in which a cell tries them: first the one that matches its
    number, as cells then rarely collide, later ones while a predecessor still holds that port."""
    digits = re.search(r"[0-9]+$", cell)
    first = int(digits[0]) % len(ports) if digits else 0
    return [*ports[first:], *ports[:first]]


@dataclass(slots=True)
class _Ingress:
    transport: asyncio.Transport | None
    """Connection under the WebSocket."""
    placed: deque[Placement]
    """Requests that came by other ingresses, of which it has not been told."""
    address: str = ""
    """Address from its ``Hello``; empty before."""
    has_summary: bool = False
    """Whether it knows the cell, without which it ignores placed requests."""


class CellServer:
    """The server of a cell scheduler.

    ports: candidates, the first free of which is used; 0 means any port.
    """

    def __init__(
        self,
        scheduler: CellScheduler,
        keys: LiveKeys,
        host: str = "127.0.0.1",
        ports: Sequence[int] = (0,),
    ) -> None:
        self._scheduler = scheduler
        self._keys = keys
        self._host = host
        self._ports = ports
        self._ingresses: dict[web.WebSocketResponse, _Ingress] = {}
        self._placed = deque[Placement](maxlen=MAX_PLACED)
        self._has_placed = asyncio.Event()
        self._tasks = BackgroundTasks()
        app = web.Application(middlewares=[self._log_refusals, _error_middleware])
        guard(app, keys, self._audiences)
        app.add_routes(
            [
                web.get(INGRESS_PATH, self._serve_ingress),
                web.get("/report", self._report),
                web.get("/load", self._load),
                web.post("/adopt", self._adopt),
                web.post("/release", self._release),
                web.post("/pool", self._set_pool),
                web.post("/drain", self._drain),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)

    @property
    def num_ingresses(self) -> int:
        """Return the number of connected ingresses."""
        return len(self._ingresses)

    async def start(self) -> str:
        """Listen; return the base URL. Raises OSError when no port is free."""
        await self._runner.setup()
        await self._listen()
        self._tasks.start("summaries to ingresses", self._broadcast())
        self._tasks.start("placed requests to ingresses", self._broadcast_placed())
        return base_url(self._keys.tls, self._host, self._runner.addresses[0][1])

    async def _listen(self) -> None:
        tls = self._keys.tls.server if self._keys.tls else None
        for port in self._ports:
            try:
                await web.TCPSite(self._runner, self._host, port, ssl_context=tls).start()
                return
            except OSError as error:
                if error.errno != errno.EADDRINUSE or port == self._ports[-1]:
                    raise

    def _audiences(self, path: str) -> tuple[Audience, ...]:
        purpose = Purpose.ROUTING if path == INGRESS_PATH else Purpose.ORDERS
        return (Audience(purpose, self._scheduler.name),)

    def check(self) -> None:
        """Raise RuntimeError when the cell scheduler or its server can no longer serve."""
        if not self._runner.addresses:
            raise RuntimeError("the HTTP server has ended")
        self._tasks.check()
        self._scheduler.check()

    async def stop(self) -> None:
        await self._tasks.stop()
        await self._runner.cleanup()

    # -- ingresses

    async def _serve_ingress(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(heartbeat=5, compress=False)
        await socket.prepare(request)
        self._ingresses[socket] = _Ingress(request.transport, self._placed.copy())
        self._scheduler.changed.set()
        try:
            async for message in socket:
                is_data = message.type in (WSMsgType.TEXT, WSMsgType.BINARY)
                if is_data and (told := messages.decode_to_cell(message.data)):
                    await self._answer(socket, told)
        except msgspec.MsgspecError:
            await socket.close(code=1003)
        finally:
            self._ingresses.pop(socket, None)
        return socket

    async def _answer(self, socket: web.WebSocketResponse, message: messages.ToCell) -> None:
        match message:
            case messages.RouteQuery():
                reply = self._scheduler.route(message)
                if reply.instance is not None:
                    self._note_placed(socket, message.placement)
                await socket.send_bytes(messages.encode(reply))
            case messages.Settled(route_id=route_id, explained=explained):
                self._scheduler.settle(route_id, explained)
            case messages.Refused(by_reason=by_reason):
                self._scheduler.note_refused(by_reason)
            case messages.Hello(address=address):
                if ingress := self._ingresses.get(socket):
                    ingress.address = address
                    self._scheduler.changed.set()

    async def _broadcast(self) -> None:
        scheduler = self._scheduler
        while True:
            await _wait(scheduler.changed, SUMMARY_MAX_S)
            scheduler.changed.clear()
            scheduler.members_changed.clear()
            ingresses = dict(self._ingresses)
            known = [found.address for found in ingresses.values() if found.address]
            told = [*scheduler.take_moves(), scheduler.summary(known)]
            for data in map(messages.encode, told):
                await asyncio.gather(*(self._send(socket, data) for socket in ingresses))
            for ingress in ingresses.values():
                ingress.has_summary = True
            self._has_placed.set()
            await _wait(scheduler.members_changed, SUMMARY_MIN_S)

    def _note_placed(self, socket: web.WebSocketResponse, placement: Placement) -> None:
        """Note a request for the other ingresses, and for those that will connect."""
        if not (placement.prefix or placement.session):
            return
        self._placed.append(placement)
        self._has_placed.set()
        for other, ingress in self._ingresses.items():
            if other is not socket:
                ingress.placed.append(placement)

    async def _broadcast_placed(self) -> None:
        while True:
            await self._has_placed.wait()
            self._has_placed.clear()
            ingresses = [*self._ingresses.items()]
            await asyncio.gather(*(self._send_placed(*each) for each in ingresses))
            await asyncio.sleep(PLACED_MIN_S)

    async def _send_placed(self, socket: web.WebSocketResponse, ingress: _Ingress) -> None:
        if ingress.placed and ingress.has_summary:
            data = messages.encode(messages.Placed(tuple(ingress.placed)))
            ingress.placed.clear()
            await self._send(socket, data)

    async def _send(self, socket: web.WebSocketResponse, data: bytes) -> None:
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await socket.send_bytes(data)
        except (ConnectionError, RuntimeError, TimeoutError):
            ingress = self._ingresses.pop(socket, None)
            if ingress and ingress.transport:
                # It would keep sending queries based on an outdated view of the cell.
                ingress.transport.abort()

    # -- orders

    @web.middleware
    async def _log_refusals(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPError as error:
            log.warning(
                "command rejected",
                cell=self._scheduler.name,
                command=request.path.strip("/"),
                status=error.status,
                reason=error.text,
            )
            raise

    async def _report(self, request: web.Request) -> web.Response:
        body = messages.encode(self._scheduler.report())
        return web.Response(body=body, content_type="application/json")

    async def _load(self, request: web.Request) -> web.Response:
        body = messages.encode(await self._scheduler.load())
        return web.Response(body=body, content_type="application/json")

    async def _adopt(self, request: web.Request) -> web.Response:
        order = await _order(request, AdoptOrder)
        if not await self._scheduler.adopt(order.handle, order.prefixes):
            raise web.HTTPGatewayTimeout(text="the instance sent no status")
        return web.json_response({})

    async def _release(self, request: web.Request) -> web.Response:
        order = await _order(request, ReleaseOrder)
        body = messages.encode(await self._scheduler.release(order.name))
        return web.Response(body=body, content_type="application/json")

    async def _set_pool(self, request: web.Request) -> web.Response:
        order = await _order(request, PoolOrder)
        await self._scheduler.set_pool(order.name, Pool(order.pool))
        return web.json_response({})

    async def _drain(self, request: web.Request) -> web.Response:
        order = await _order(request, DrainOrder)
        await self._scheduler.drain(order.name, order.draining)
        return web.json_response({})


@web.middleware
async def _error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Map errors to HTTP statuses: 400 and 404 for the caller's, 502 for the instance's."""
    try:
        return await handler(request)
    except (msgspec.MsgspecError, HandleError) as error:
        raise web.HTTPBadRequest(text=str(error)) from error
    except UnknownInstanceError as error:
        raise web.HTTPNotFound(text=str(error)) from error
    except (aiohttp.ClientError, TimeoutError) as error:
        raise web.HTTPBadGateway(
            text=f"the instance did not accept the command: {error}"
        ) from error


async def _order(request: web.Request, kind: type[T]) -> T:
    return msgspec.json.decode(await request.read(), type=kind)


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
