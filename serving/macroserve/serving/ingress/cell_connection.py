"""The connection from an ingress to one cell scheduler."""

import asyncio
import contextlib
from collections.abc import Callable

import aiohttp
import msgspec
from msgspec.structs import replace

from macroserve.api import messages
from macroserve.api.messages import Placed, PrefixesMoved
from macroserve.core.status import CellView

REPLY_TIMEOUT_S = 1.0


class CellConnection:
    def __init__(
        self,
        name: str,
        url: str,
        socket: aiohttp.ClientWebSocketResponse,
        on_change: Callable[[], None],
        on_news: Callable[[CellView, Placed | PrefixesMoved], None],
    ) -> None:
        self.name = name
        self.url = url
        self.summary: messages.CellSummary | None = None
        self._asked_tokens = 0
        self._socket = socket
        self._on_change = on_change
        self._on_news = on_news
        self._waiting: dict[str, asyncio.Future[messages.RouteReply]] = {}
        self._reader = asyncio.create_task(self._read())

    @property
    def open(self) -> bool:
        return not self._reader.done()

    @property
    def view(self) -> CellView | None:
        """Return the cell's last report plus the queries in flight; None before its first
        report."""
        if self.summary is None:
            return None
        cell = self.summary.cell
        asked_s = self._asked_tokens * cell.prefill_s_per_token
        return replace(cell, waiting_prefill_s=cell.waiting_prefill_s + asked_s)

    async def route(self, query: messages.RouteQuery) -> messages.RouteReply:
        """Ask the cell for an instance. Raises ConnectionError or TimeoutError when the scheduler
        does not answer."""
        if not self.open:
            raise ConnectionResetError(f"{self.name} is gone")
        future = asyncio.get_running_loop().create_future()
        self._waiting[query.info.route_id] = future
        self._asked_tokens += query.num_prompt_tokens
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                await self._socket.send_bytes(messages.encode(query))
                return await future
        finally:
            self._asked_tokens -= query.num_prompt_tokens
            del self._waiting[query.info.route_id]

    async def send(self, message: messages.ToCell) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                await self._socket.send_bytes(messages.encode(message))

    async def close(self) -> None:
        self._reader.cancel()
        await self._socket.close()

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                if told := messages.decode_to_ingress(message.data):
                    self._take(told)
        except (msgspec.MsgspecError, TypeError):
            await self._socket.close()
        finally:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionResetError(f"{self.name} is gone"))
            self._on_change()

    def _take(self, message: messages.ToIngress) -> None:
        match message:
            case messages.RouteReply():
                future = self._waiting.get(message.route_id)
                if future and not future.done():
                    future.set_result(message)
                if self.summary is not None:
                    cell = replace(self.summary.cell, waiting_prefill_s=message.waiting_prefill_s)
                    self.summary = replace(
                        self.summary, cell=cell, queue_wait_s=message.queue_wait_s
                    )
            case messages.CellSummary():
                self.summary = message
                self._on_change()
            case PrefixesMoved() | Placed():
                if self.summary is not None:
                    self._on_news(self.summary.cell, message)
