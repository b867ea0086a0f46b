"""The ingress's view of the cells: the overall scheduler, and the lines to the cell schedulers."""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import aiohttp
import msgspec
from msgspec.structs import replace

from macroserve.api import messages
from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose
from macroserve.core.routing.attempts import Run
from macroserve.core.routing.cells import turns
from macroserve.core.status import CellView
from macroserve.serving.security.calls import session, to
from macroserve.serving.security.key_source import LiveKeys

REFRESH_S = 1.0
REPLY_TIMEOUT_S = 1.0
MAX_EXPLAINED = 64
"""Of the breaks whose cause this ingress knows, the latest are remembered."""
MAX_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an attempt goes. cell is None when no scheduler could be asked."""

    run: Run
    address: str
    cell: str | None
    reason: str

    @property
    def instance(self) -> str:
        return self.run.instance


class CellLine:
    """The connection to one cell scheduler."""

    def __init__(
        self,
        name: str,
        url: str,
        socket: aiohttp.ClientWebSocketResponse,
        on_change: Callable[[], None],
    ) -> None:
        self.name = name
        self.url = url
        self.summary: messages.CellSummary | None = None
        self._asked_tokens = 0
        self._socket = socket
        self._on_change = on_change
        self._waiting: dict[str, asyncio.Future[messages.RouteReply]] = {}
        self._reader = asyncio.create_task(self._read())

    @property
    def open(self) -> bool:
        return not self._reader.done()

    @property
    def view(self) -> CellView | None:
        """The cell with what was asked of it since it last spoke; None before it first did."""
        if self.summary is None:
            return None
        cell = self.summary.cell
        asked_s = self._asked_tokens * cell.prefill_s_per_token
        return replace(cell, waiting_prefill_s=cell.waiting_prefill_s + asked_s)

    async def route(self, query: messages.RouteQuery) -> messages.RouteReply:
        """Raises ConnectionError or TimeoutError when the scheduler does not answer."""
        if not self.open:
            raise ConnectionResetError(f"{self.name} is gone")
        future = asyncio.get_running_loop().create_future()
        self._waiting[query.route_id] = future
        self._asked_tokens += query.num_prompt_tokens
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                await self._socket.send_bytes(messages.encode(query))
                return await future
        finally:
            self._asked_tokens -= query.num_prompt_tokens
            del self._waiting[query.route_id]

    async def send(self, message: messages.ToCell) -> None:
        with contextlib.suppress(ConnectionError):
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


class CellDirectory:
    """All cells, kept connected.

    discover: the cells by name, each with the base URL where its scheduler listened last.
    address: where peers can read this ingress's own metrics.
    """

    def __init__(
        self,
        discover: Callable[[], Awaitable[Mapping[str, str]]],
        keys: LiveKeys,
        address: str = "",
    ) -> None:
        self._discover = discover
        self._keys = keys
        self._address = address
        self._lines: dict[str, CellLine] = {}
        self._last_members: dict[str, tuple[messages.Member, ...]] = {}
        self._explained: deque[Run] = deque(maxlen=MAX_EXPLAINED)
        self._draining: dict[Run, bool] = {}  # of lost instances, too
        self._changed = asyncio.Event()
        self._turn = itertools.count()

    async def start(self) -> None:
        self._http = session(self._keys)
        self._task = asyncio.create_task(self._keep_connected())

    async def stop(self) -> None:
        self._task.cancel()
        for line in self._lines.values():
            await line.close()
        await self._http.close()

    # -- what is there

    @property
    def summaries(self) -> list[messages.CellSummary]:
        return [line.summary for line in self._lines.values() if line.open and line.summary]

    @property
    def members(self) -> dict[str, messages.Member]:
        """Every instance that some cell holds or, where its scheduler is away, last held."""
        return {m.name: m for members in self._last_members.values() for m in members}

    @property
    def explained(self) -> frozenset[Run]:
        """Runs of instances that broke because of one request, which is known."""
        told = (run for summary in self.summaries for run in summary.explained)
        return frozenset([*self._explained, *told])

    def is_leaving(self, run: Run) -> bool:
        """Whether the instance drained when it was last heard of."""
        return self._draining.get(run, False)

    @property
    def late(self) -> bool:
        """Every queue of every cell is past its TTFT target."""
        summaries = self.summaries
        return bool(summaries) and all(summary.late for summary in summaries)

    @property
    def queue_wait_s(self) -> float | None:
        """Predicted time until a request that comes now begins, in the cell where that is soonest;
        None without an instance that takes requests."""
        waits = [summary.queue_wait_s for summary in self.summaries]
        return min([wait_s for wait_s in waits if wait_s is not None], default=None)

    async def changed(self, timeout_s: float) -> None:
        """Returns at the next change, or after the time-out."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    # -- where a request goes

    async def place(self, query: messages.RouteQuery) -> Placement | None:
        """The least loaded cell that meets the constraints, else the least loaded one; None
        when no instance is known anywhere."""
        views = [view for line in self._lines.values() if line.open and (view := line.view)]
        answered = set[str]()
        for name, force in turns(views):
            try:
                reply = await self._lines[name].route(replace(query, force=force))
            except (ConnectionError, TimeoutError, KeyError):
                continue
            answered.add(name)
            if reply.instance is not None:
                run = Run(reply.instance, reply.incarnation)
                return Placement(run, reply.address, name, reply.reason)
        return self._without_scheduler(query, answered)

    def _without_scheduler(
        self, query: messages.RouteQuery, answered: set[str]
    ) -> Placement | None:
        """Instances schedule themselves safely, so a missing cell scheduler costs order only.

        answered: the cells that are not missing, whose word holds.
        """
        members = [
            member
            for cell, members in self._last_members.items()
            for member in members
            if cell not in answered and member.name not in query.exclude
        ]
        if not members:
            return None
        member = members[next(self._turn) % len(members)]
        return Placement(member.run, member.address, None, "no_scheduler")

    async def settle(
        self, placement: Placement, route_id: str, explained: tuple[Run, ...] = ()
    ) -> None:
        """explained: see ``messages.Settled``."""
        self._explained.extend(explained)
        if line := self._lines.get(placement.cell or ""):
            await line.send(messages.Settled(route_id, explained))

    # -- connections

    def _on_change(self) -> None:
        for name, line in self._lines.items():
            if line.open and line.summary:
                self._last_members[name] = line.summary.members
                for member in line.summary.members:
                    self._draining[member.run] = member.draining
        while len(self._draining) > MAX_REMEMBERED:
            del self._draining[next(iter(self._draining))]
        self._changed.set()

    async def _keep_connected(self) -> None:
        while True:
            with contextlib.suppress(Exception):
                # Discovery asks the cluster: whatever fails there, the next round tries again.
                await self._connect(await self._discover())
            await asyncio.sleep(REFRESH_S)

    async def _connect(self, cells: Mapping[str, str]) -> None:
        if not cells:
            return  # a head that has just begun: a deployment is never without a cell
        for name in set(self._lines) - set(cells):
            await self._lines.pop(name).close()
            self._last_members.pop(name, None)
        for name, url in cells.items():
            if (line := self._lines.get(name)) and line.open and line.url == url:
                continue
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with asyncio.timeout(2):
                    socket = await self._http.ws_connect(
                        url + "/ingress",
                        headers=to(Audience(Purpose.ROUTING, name)),
                        heartbeat=5,
                        max_msg_size=0,
                        compress=0,
                    )
                if line is not None:
                    await line.close()
                self._lines[name] = line = CellLine(name, url, socket, self._on_change)
                await line.send(messages.Hello(self._address))
