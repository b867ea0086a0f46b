"""The ingress's overall scheduler, over connections to the cell schedulers."""

import asyncio
import contextlib
import itertools
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import aiohttp
from msgspec.structs import replace

from macroserve.api import messages
from macroserve.api.access_token import Audience
from macroserve.api.held_prefixes import unpack_held
from macroserve.api.keys import Purpose
from macroserve.api.logs import get_logger
from macroserve.api.messages import Placed, PrefixesMoved
from macroserve.core.routing.attempts import InstanceRun
from macroserve.core.routing.overall import OverallScheduler
from macroserve.core.routing.queue_wait import is_late, share_ahead
from macroserve.core.status import CellView, by_number
from macroserve.core.strategy import Strategy
from macroserve.serving.background import BackgroundTasks
from macroserve.serving.causes import cause_of
from macroserve.serving.ingress.cell_connection import CellConnection
from macroserve.serving.security.calls import session, to
from macroserve.serving.security.key_source import LiveKeys

log = get_logger(__name__)

REFRESH_S = 1.0
MAX_EXPLAINED = 64
"""Latest breaks of known cause that an ingress remembers."""
MAX_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class RoutedInstance:
    """The instance chosen for an attempt."""

    run: InstanceRun
    address: str
    cell: str | None
    """Cell that chose it; None without a reachable scheduler."""
    reason: str

    @property
    def instance(self) -> str:
        return self.run.instance


class CellDirectory:
    """All cells of the deployment, and the connections to them.

    discover: returns the last known base URLs of the cell schedulers, by cell.
    address: of this ingress's metrics, for its peers.
    """

    def __init__(
        self,
        discover: Callable[[], Awaitable[Mapping[str, str]]],
        keys: LiveKeys,
        strategy: Strategy,
        address: str = "",
    ) -> None:
        self._discover = discover
        self._overall = OverallScheduler(strategy)
        self._address = address
        self._connections: dict[str, CellConnection] = {}
        self._last_members: dict[str, tuple[messages.CellMember, ...]] = {}
        self._explained: deque[InstanceRun] = deque(maxlen=MAX_EXPLAINED)
        self._draining: dict[InstanceRun, bool] = {}  # lost instances included
        self._changed = asyncio.Event()
        self._turn = itertools.count()
        self._http = session(keys)
        self._tasks = BackgroundTasks()
        self._discovery_fails = False
        self._refused = Counter[str]()

    async def start(self) -> None:
        self._tasks.start("cell connections", self._keep_connected())

    def check(self) -> None:
        """Raise RuntimeError when the search for cells has ended."""
        self._tasks.check()

    async def stop(self) -> None:
        await self._tasks.stop()
        for connection in self._connections.values():
            await connection.close()
        await self._http.close()

    # -- state of the cells

    @property
    def summaries(self) -> list[messages.CellSummary]:
        return [
            connection.summary
            for connection in self._connections.values()
            if connection.open and connection.summary
        ]

    @property
    def members(self) -> dict[str, messages.CellMember]:
        """Return the instances of all cells by name, as last reported."""
        return {m.name: m for members in self._last_members.values() for m in members}

    @property
    def explained(self) -> frozenset[InstanceRun]:
        """Return the runs of instances that broke because of a known request."""
        told = (run for summary in self.summaries for run in summary.explained)
        return frozenset([*self._explained, *told])

    def is_leaving(self, run: InstanceRun) -> bool:
        """Return whether the instance was draining when last reported."""
        return self._draining.get(run, False)

    def is_late(self, ttft_s: float) -> bool:
        """Return whether a new request would wait beyond its TTFT target at every instance."""
        summaries = self.summaries
        return bool(summaries) and all(is_late(each.least_waits, ttft_s) for each in summaries)

    def queue_wait_s(self, ttft_s: float) -> float | None:
        """Predict the shortest queueing time of a new request with this TTFT target over all cells,
        seconds; None without an instance that accepts requests."""
        waits = [
            summary.queue_wait_s * share_ahead(summary.least_waits, ttft_s)
            for summary in self.summaries
            if summary.queue_wait_s is not None
        ]
        return min(waits, default=None)

    def note_refused(self, reason: str) -> None:
        """Count a refused request, to be reported by a cell."""
        self._refused[reason] += 1

    async def changed(self, timeout_s: float) -> None:
        """Wait for the next change, at most ``timeout_s``."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    # -- routing

    async def route(self, query: messages.RouteQuery) -> RoutedInstance | None:
        """Choose an instance of the first cell that meets the constraints, else of the first cell
        with any; None without instances."""
        views = {
            connection.name: view
            for connection in self._connections.values()
            if connection.open and (view := connection.view)
        }
        # The order of cells depends on the request's age alone, not on the clock.
        request = query.to_route_request(now=0.0)
        answered = set[str]()
        for name, ignore_constraints in self._overall.attempts([*views.values()], request, 0.0):
            try:
                reply = await self._connections[name].route(
                    replace(query, ignore_constraints=ignore_constraints)
                )
            except (ConnectionError, TimeoutError, KeyError):
                continue
            answered.add(name)
            if reply.instance is not None:
                self._note(views[name], query.placement)
                run = InstanceRun(reply.instance, reply.incarnation)
                return RoutedInstance(run, reply.address, name, reply.reason)
        return self._without_scheduler(query, answered)

    def _without_scheduler(
        self, query: messages.RouteQuery, answered: set[str]
    ) -> RoutedInstance | None:
        """Choose in turn among the instances of cells whose scheduler has not ``answered``. That
        costs balance only: instances schedule their own batches."""
        members = [
            member
            for cell, members in self._last_members.items()
            for member in members
            if cell not in answered and member.name not in query.exclude
        ]
        if not members:
            return None
        member = members[next(self._turn) % len(members)]
        return RoutedInstance(member.run, member.address, None, "no_scheduler")

    async def settle(
        self, routed: RoutedInstance, route_id: str, explained: tuple[InstanceRun, ...] = ()
    ) -> None:
        """Report the end of an attempt to its cell (see ``messages.Settled``)."""
        self._explained.extend(explained)
        if connection := self._connections.get(routed.cell or ""):
            await connection.send(messages.Settled(route_id, explained))

    # -- connections

    def _on_change(self) -> None:
        for name, connection in self._connections.items():
            if connection.open and connection.summary:
                self._last_members[name] = connection.summary.members
                for member in connection.summary.members:
                    self._draining[member.run] = member.draining
        while len(self._draining) > MAX_REMEMBERED:
            del self._draining[next(iter(self._draining))]
        self._changed.set()

    def _on_news(self, cell: CellView, news: Placed | PrefixesMoved) -> None:
        if isinstance(news, Placed):
            for placement in news.placements:
                self._note(cell, placement)
            return
        try:
            held = unpack_held(news.prefixes)
        except ValueError as error:
            log.warning("prefix record ignored", cell=cell.name, reason=str(error))
            return
        if news.came:
            self._overall.arrived(cell.name, held)
        else:
            self._overall.left(cell.name, held)

    def _note(self, cell: CellView, placed: messages.Placement) -> None:
        num_tokens, prefix = placed.num_prompt_tokens, placed.prefix_keys
        self._overall.note(cell, num_tokens, prefix, placed.session_key)

    async def _keep_connected(self) -> None:
        while True:
            await self._refresh()
            await self._tell_refused()
            await asyncio.sleep(REFRESH_S)

    async def _tell_refused(self) -> None:
        """Report refused requests to one cell only, since readers add up all cells."""
        connections = [each for each in self._connections.values() if each.open]
        if self._refused and connections:
            told, self._refused = self._refused, Counter()
            first = min(connections, key=lambda each: by_number(each.name))
            await first.send(messages.Refused(dict(told)))

    async def _refresh(self) -> None:
        """Discover cells and connect to them. Failures of discovery are logged at their start and
        end, and retried."""
        try:
            await self._connect(await self._discover())
        except Exception as error:
            if not self._discovery_fails:
                self._discovery_fails = True
                log.warning("cell discovery failed", reason=cause_of(error))
            return
        if self._discovery_fails:
            self._discovery_fails = False
            log.info("cell discovery recovered")

    async def _connect(self, cells: Mapping[str, str]) -> None:
        if not cells:
            return  # the head is starting: a deployment always has a cell
        for name in set(self._connections) - set(cells):
            log.info("cell removed", cell=name)
            await self._connections.pop(name).close()
            self._last_members.pop(name, None)
            self._overall.forget(name)
        for name, url in cells.items():
            if (
                (connection := self._connections.get(name))
                and connection.open
                and connection.url == url
            ):
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
                if connection is not None:
                    await connection.close()
                self._connections[name] = connection = CellConnection(
                    name, url, socket, self._on_change, self._on_news
                )
                await connection.send(messages.Hello(self._address))
                log.info("cell connected", cell=name, url=url)
