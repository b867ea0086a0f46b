"""The head of a deployment of pods: the Ray cluster of the cell schedulers, and their control API.

Only cell schedulers depend on the head. While it is down, ingresses send requests to the instances
they know; after a restart, the instances report which cells there were.

- ``GET /health``, ``GET /ready``: open.
- ``GET /cells``: addresses of the cell schedulers, for ingresses with a token (``calls``).
- ``/admin/v1``, with the admin token: the API of ``admin``, ``GET /cells`` (a HeadReport),
  ``PUT`` and ``DELETE`` of ``/cells/{cell}``, ``GET /load``.
"""

import asyncio
import contextlib
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from macroserve.api import messages
from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose
from macroserve.api.messages import ADMIN_PREFIX
from macroserve.core.scaling.load import LoadReport
from macroserve.core.scaling.load_recorder import aged, total
from macroserve.serving.admin import ANSWER_TIMEOUT, AdminApi, OrderError
from macroserve.serving.discovery import InstanceDiscovery
from macroserve.serving.head.cells import CELLS_PATH, HeadCells
from macroserve.serving.http.errors import error_response
from macroserve.serving.http.server import HttpServer, bound
from macroserve.serving.ray.cells import DeployError, RayCells
from macroserve.serving.ray.registry import cell_urls
from macroserve.serving.security.call_guard import CallGuard
from macroserve.serving.security.calls import session, to
from macroserve.serving.security.key_source import KeySource, LiveKeys

CELL_NAME = re.compile(r"cell-[0-9]{1,9}")
DEPLOY_TIMEOUT_S = 60.0
HEALTH_TIMEOUT_S = 5.0
STOP_GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOptions:
    host: str
    port: int
    """0 means any free port."""
    keys: KeySource
    admin_token: Callable[[], str]
    """Returns the current token for /admin."""


class HeadServer:
    def __init__(self, cells: RayCells, discovery: InstanceDiscovery, options: HeadOptions) -> None:
        self._cells = cells
        self._discovery = discovery
        self._ready = False
        keys = LiveKeys(options.keys)
        self._http = session(keys)
        self._admin = AdminApi(self._urls, self._http, options.admin_token)
        self._load = DeploymentLoad(self._urls, self._http)
        guarded = CallGuard(self._application(), keys, _audiences)
        self._server = HttpServer(guarded, STOP_GRACE_S, tls=keys.tls)
        self._socket = bound(options.host, options.port)

    @property
    def port(self) -> int:
        return self._socket.getsockname()[1]

    async def start(self) -> None:
        """Start a scheduler for each cell that an instance belongs to, then report ready."""
        await self._server.start(self._socket)
        try:
            await asyncio.to_thread(self._cells.start)
            named = {identity.cell for identity in await self._discovery.find()}
            await asyncio.gather(*(self._restore(cell) for cell in named if cell))
        except BaseException:
            self._cells.stop()
            raise
        self._ready = True

    async def _restore(self, cell: str) -> None:
        # The operator deploys a cell again whose scheduler does not start now.
        with contextlib.suppress(DeployError, TimeoutError):
            await self._start_cell(cell)

    async def _start_cell(self, cell: str) -> None:
        """Start a cell scheduler. Raises DeployError, and TimeoutError after which the start
        continues in the background."""
        async with asyncio.timeout(DEPLOY_TIMEOUT_S):
            await asyncio.shield(self._cells.deploy_cell(cell))

    async def leave(self) -> None:
        """Report not ready; accepted requests do not depend on the head."""
        self._ready = False

    async def stop(self) -> None:
        await self._server.stop()
        await asyncio.to_thread(self._cells.stop)
        await self._http.close()

    def check(self) -> None:
        """Raise RuntimeError when the head can no longer serve."""
        if not self._server.alive:
            raise RuntimeError("the HTTP server has ended")

    def _application(self) -> Starlette:
        admin = self._admin
        cells, cell = ADMIN_PREFIX + "/cells", ADMIN_PREFIX + "/cells/{cell}"
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/ready", self._ready_endpoint),
                Route(CELLS_PATH, self._cell_urls),
                Route(ADMIN_PREFIX + "/load", admin.guarded(self._load_report)),
                Route(cells, admin.guarded(self._report)),
                Route(cell, admin.guarded(self._deploy), methods=["PUT"]),
                Route(cell, admin.guarded(self._delete), methods=["DELETE"]),
                *admin.routes(),
            ]
        )

    # -- endpoints

    async def _health(self, request: Request) -> Response:
        """Answer 503 when Ray does not answer, which only a new head repairs."""
        if self._ready:
            try:
                async with asyncio.timeout(HEALTH_TIMEOUT_S):
                    await cell_urls()
            except Exception as error:  # whatever Ray raises
                return error_response(
                    HTTPStatus.SERVICE_UNAVAILABLE, f"Ray is not running: {error!r}"
                )
        return Response()

    async def _ready_endpoint(self, request: Request) -> Response:
        if self._ready:
            return Response()
        return error_response(HTTPStatus.SERVICE_UNAVAILABLE, "the head is starting")

    async def _cell_urls(self, request: Request) -> Response:
        if not self._ready:
            return await self._ready_endpoint(request)
        body = messages.encode(HeadCells(dict(await cell_urls())))
        return Response(body, media_type="application/json")

    async def _report(self, request: Request) -> Response:
        """Answer with a HeadReport, which the operator reads in each reconcile."""
        reports, running = await self._admin.cells(), self._cells.cells
        return JSONResponse({"cells": reports, "running": sorted(running)})

    async def _deploy(self, request: Request) -> Response:
        self._check_ready()
        cell = request.path_params["cell"]
        if not CELL_NAME.fullmatch(cell):
            raise OrderError(HTTPStatus.BAD_REQUEST, "a cell's name must be cell- and a number")
        try:
            await self._start_cell(cell)
        except TimeoutError:
            raise OrderError(HTTPStatus.GATEWAY_TIMEOUT, f"{cell} is still starting") from None
        except DeployError as error:
            raise OrderError(HTTPStatus.BAD_GATEWAY, f"{cell} did not start: {error}") from error
        return JSONResponse({})

    async def _delete(self, request: Request) -> Response:
        self._check_ready()
        cell = request.path_params["cell"]
        await self._load.remember(cell)
        await self._cells.delete_cell(cell)
        return JSONResponse({})

    async def _load_report(self, request: Request) -> Response:
        return Response(messages.encode(await self._load.report()), media_type="application/json")

    async def _urls(self) -> Mapping[str, str]:
        """Return the URLs of all cells. Raises OrderError during the start, when some cells may
        have no scheduler yet."""
        self._check_ready()
        return await cell_urls()

    def _check_ready(self) -> None:
        if not self._ready:
            raise OrderError(HTTPStatus.SERVICE_UNAVAILABLE, "the head is starting")


class DeploymentLoad:
    """The summed load of all cells, deleted ones included.

    discover: returns the base URLs of the cell schedulers, by cell.
    http: a session of ``calls.session``.
    """

    def __init__(
        self,
        discover: Callable[[], Awaitable[Mapping[str, str]]],
        http: aiohttp.ClientSession,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._discover = discover
        self._http = http
        self._clock = clock
        self._past: list[tuple[float, LoadReport]] = []
        self._chance = random.Random()

    async def report(self) -> LoadReport:
        """Return the sum over the cells that answer and the deleted ones."""
        now = self._clock()
        past = [aged(report, now - since) for since, report in self._past]
        self._past = [kept for kept, report in zip(self._past, past, strict=True) if report.buckets]
        cells = (await self._discover()).items()
        present = await asyncio.gather(*(self._ask(cell, url) for cell, url in cells))
        return total([*filter(None, present), *past], self._chance)

    async def remember(self, cell: str) -> None:
        """Keep the load of a cell that is about to be deleted: the others get its requests."""
        if (url := (await self._discover()).get(cell)) and (report := await self._ask(cell, url)):
            self._past.append((self._clock(), report))

    async def _ask(self, cell: str, url: str) -> LoadReport | None:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, msgspec.MsgspecError):
            async with self._http.get(
                url + "/load", headers=to(Audience(Purpose.ORDERS, cell)), timeout=ANSWER_TIMEOUT
            ) as response:
                response.raise_for_status()
                return msgspec.json.decode(await response.read(), type=LoadReport)
        return None


def _audiences(path: str) -> tuple[Audience, ...] | None:
    """Return the audiences of a path; the admin API checks its own token."""
    return (Audience(Purpose.CELLS),) if path == CELLS_PATH else None
