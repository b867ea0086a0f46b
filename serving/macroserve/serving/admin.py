"""The admin API: reports of the deployment's cells, and orders to them.

``GET /admin/v1/report``, ``POST /admin/v1/migrate`` and
``POST /admin/v1/cells/{cell}/{adopt,release,pool,drain}``, with the admin token or with an access
token derived from it, which keeps the admin token off the network. ``macroserve status`` calls it
on an ingress, the operator on the head.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from macroserve.api.access_token import Audience
from macroserve.api.auth import TokenCheck
from macroserve.api.keys import KeyRing, Purpose
from macroserve.api.logs import get_logger
from macroserve.api.messages import ADMIN_PREFIX, MigrateOrder, ReleaseOrder
from macroserve.serving.http.errors import error_response
from macroserve.serving.security.calls import admission, to

log = get_logger(__name__)

ANSWER_TIMEOUT = aiohttp.ClientTimeout(total=3)
"""Time-out of one cell's report, well below the operator's time-out for all of them."""
ORDER_TIMEOUT = aiohttp.ClientTimeout(total=15)
CELL_ORDERS = ("adopt", "release", "pool", "drain")


class OrderError(Exception):
    """An order that was not carried out, with the HTTP status of the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class AdminApi:
    """The admin API for all cells of a deployment.

    discover: returns the base URLs of the cell schedulers, by cell.
    http: a session of ``calls.session``.
    token: returns the current admin token, which is never empty.
    """

    def __init__(
        self,
        discover: Callable[[], Awaitable[Mapping[str, str]]],
        http: aiohttp.ClientSession,
        token: Callable[[], str],
    ) -> None:
        self._discover = discover
        self._http = http
        self._token = token

    def routes(self) -> list[Route]:
        return [
            Route(ADMIN_PREFIX + "/report", self.guarded(self._report)),
            Route(ADMIN_PREFIX + "/migrate", self.guarded(self._migrate), methods=["POST"]),
            Route(
                ADMIN_PREFIX + "/cells/{cell}/{order}", self.guarded(self._order), methods=["POST"]
            ),
        ]

    def _allows(self, headers: Mapping[str, str]) -> bool:
        token = self._token()
        if TokenCheck([token]).allows(headers):
            return True
        ring = KeyRing.derived([token], [Purpose.ADMIN])
        return admission(ring, headers, [Audience(Purpose.ADMIN)]) is not None

    def guarded(self, handler):
        """Require the admin token for ``handler``, and answer its errors with an HTTP status."""

        async def guarded(request: Request) -> Response:
            if not self._allows(request.headers):
                return error_response(HTTPStatus.UNAUTHORIZED, "the admin token is wrong")
            try:
                return await handler(request)
            except OrderError as error:
                return _refused(request, error.status, str(error))
            except msgspec.MsgspecError as error:
                return _refused(request, HTTPStatus.BAD_REQUEST, str(error))

        return guarded

    async def _report(self, request: Request) -> Response:
        """Answer with ``{"cells": [CellReport, ...]}``."""
        return JSONResponse({"cells": await self.cells()})

    async def cells(self) -> list[Any]:
        """Return the reports of the cells that answer, as plain data, sorted by name."""
        urls = sorted((await self._discover()).items())
        reports = await asyncio.gather(*(self._cell_report(cell, url) for cell, url in urls))
        return [report for report in reports if report is not None]

    async def _cell_report(self, cell: str, url: str) -> Any:
        try:
            async with self._http.get(
                url + "/report", headers=_to(cell), timeout=ANSWER_TIMEOUT
            ) as response:
                return msgspec.json.decode(await response.read())
        except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError):
            return None

    async def _order(self, request: Request) -> Response:
        order = request.path_params["order"]
        if order not in CELL_ORDERS:
            raise OrderError(HTTPStatus.NOT_FOUND, f"no such command, known are {CELL_ORDERS}")
        body = await request.body()
        return JSONResponse(await self._send(request.path_params["cell"], order, body))

    async def _migrate(self, request: Request) -> Response:
        """Move an instance to another cell, or back if that fails. Its streams are not interrupted
        (EcoServe, section 3.4.2: InstanceHandler)."""
        order = msgspec.json.decode(await request.body(), type=MigrateOrder)
        started = time.perf_counter()
        released = await self._send(
            order.source, "release", msgspec.json.encode(ReleaseOrder(order.instance))
        )
        handle = msgspec.json.encode(released)
        try:
            await self._send(order.target, "adopt", handle)
        except OrderError:
            await self._send(order.source, "adopt", handle)
            raise
        return JSONResponse({"seconds": time.perf_counter() - started})

    async def _send(self, cell: str, order: str, body: bytes) -> Any:
        url = (await self._discover()).get(cell)
        if url is None:
            raise OrderError(HTTPStatus.NOT_FOUND, f"there is no cell {cell}")
        try:
            async with self._http.post(
                f"{url}/{order}", headers=_to(cell), data=body, timeout=ORDER_TIMEOUT
            ) as response:
                text = await response.text()
                if response.status != HTTPStatus.OK:
                    raise OrderError(response.status, text)
                return msgspec.json.decode(text)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise OrderError(HTTPStatus.BAD_GATEWAY, f"{cell} does not answer: {error}") from error


def _refused(request: Request, status: int, reason: str) -> Response:
    log.warning(
        "command rejected",
        command=request.method + " " + request.url.path,
        status=status,
        reason=reason,
    )
    return error_response(status, reason)


def _to(cell: str) -> dict[str, str]:
    return to(Audience(Purpose.ORDERS, cell))
