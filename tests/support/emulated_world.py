"""A deployment in one process: emulated instances, cell schedulers and a dispatcher, no Ray."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs
from support import token_requests
from support.ingress_counts import counted
from support.keys import live, source
from support.slo_classes import default_class

from macroserve.api.messages import InstanceIdentity, InstanceReport
from macroserve.core.request import Slo
from macroserve.core.status import InstanceStatus, Pool
from macroserve.core.strategies import strategy
from macroserve.engine.settings import EngineSettings
from macroserve.engine.tokens import Choice, TokenRequest, unpack
from macroserve.serving.cell.scheduler import CellScheduler
from macroserve.serving.cell.server import CellServer
from macroserve.serving.ingress.cell_directory import CellDirectory
from macroserve.serving.ingress.dispatcher import Dispatcher
from macroserve.serving.ingress.metrics import IngressMetrics
from macroserve.serving.instance.server import InstanceOptions, InstanceServer
from macroserve.serving.instance.start import CacheWatch
from macroserve.serving.instance.token_server import TokenServer, TokenServerOptions

KEYS = source()
SETTINGS = EngineSettings(
    model="none",
    served_name="emulated",
    max_model_len=4096,
    strategy="unified",
    slo=Slo(ttft_s=5.0, tpot_s=0.1),
    emulated=True,
    kv_cache_bytes=8 << 30,
    max_batch_tokens=2048,
)


def token_request(
    name: str, num_tokens: int = 20, prompt: int = 50, **changes: Any
) -> TokenRequest:
    """Return a request that finds nothing of others in a prefix cache."""
    fields = {"cache_salt": name, "slo": default_class().slo, **changes}
    return token_requests.token_request(name, range(1, prompt + 1), num_tokens, **fields)


def expected_tokens(request: TokenRequest) -> list[int]:
    """Return the tokens that the emulated engine generates, on whichever instance it runs."""
    seed = sum(unpack(request.token_ids)[:4]) * 31
    start = request.num_prompt_tokens
    return [100 + (seed + (start + i) * 7) % 1000 for i in range(request.max_new_tokens)]


class EmulatedTokens(TokenServer):
    """A token server in this process, whose engine a test can stop."""

    may_offload = False
    """Whether the cell allowed the instance to offload when it last gave such an order."""

    async def command(self, verb: str, argument: Any = None) -> Any:
        result = await super().command(verb, argument)
        if verb == "let_offload":
            self.may_offload = argument
        return result

    async def stop_engine(self) -> None:
        await self._engine.stop()


class EmulatedInstance(InstanceServer):
    """A control server in this process, whose connections a test can cut."""

    @property
    def idle(self) -> bool:
        """Tell whether nothing runs or waits according to the last status."""
        return self._feed.idle

    def cut_connections(self) -> None:
        assert self._server is not None
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()


@dataclass
class World:
    settings: EngineSettings
    grace_s: float
    """Time that an instance that leaves has for its requests, seconds."""
    discovery_error: Exception | None = None
    """Raised instead of an answer where the cells are."""
    instances: dict[str, EmulatedInstance] = field(default_factory=dict)
    token_servers: dict[str, EmulatedTokens] = field(default_factory=dict)
    cells: dict[str, CellScheduler] = field(default_factory=dict)
    cell_servers: dict[str, CellServer] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)
    directory: CellDirectory = field(init=False)
    dispatcher: Dispatcher = field(init=False)
    metrics: IngressMetrics = field(init=False)

    async def add_instance(
        self,
        name: str,
        pool: Pool = Pool.LP,
        incarnation: int = 1,
        caches: CacheWatch | None = None,
    ) -> InstanceIdentity:
        options = InstanceOptions(
            name, "test", incarnation, KEYS, pool, grace_s=self.grace_s, caches=caches
        )
        self.token_servers[name] = tokens = EmulatedTokens(
            TokenServerOptions(
                settings=self.settings, name=name, pool=pool, host=options.host, keys=KEYS
            )
        )
        self.instances[name] = server = EmulatedInstance(self.settings, options, tokens)
        return await server.start()

    async def add_cell(self, name: str) -> CellScheduler:
        cell = CellScheduler(name, strategy(self.settings.strategy), self.settings.slo, live())
        self.cells[name] = cell
        self.cell_servers[name] = CellServer(cell, live())
        await cell.start([server.identity() for server in self.instances.values()])
        self.urls[name] = await self.cell_servers[name].start()
        return cell

    async def stop_cell(self, name: str) -> None:
        await self.cell_servers.pop(name).stop()
        await self.cells.pop(name).stop()

    def crash(self, name: str) -> None:
        """Crash the instance as if its process was killed: connections are reset and its port is
        closed."""
        self.instances.pop(name).kill()

    async def tokens(self, request: TokenRequest) -> list[int]:
        """Return the tokens of a request, with the SLO class of the current task, which a frontend
        sets too."""
        info = self.dispatcher.info(request.request_id)
        info = structs.replace(info, probe=request.info.probe)
        request = structs.replace(request, info=info)
        found: list[Choice] = []
        await self.dispatcher.stream(request, found.append)
        return [token for choice in found for token in choice.token_ids or ()]

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of an ingress metric, or 0 if nothing was counted."""
        return counted(self.metrics, name, **labels)

    def reports(self) -> list[InstanceReport]:
        """Return the reports of all instances in all cells."""
        return [each for cell in self.cells.values() for each in cell.report().instances]

    async def status(self, name: str) -> InstanceStatus:
        return next(each.status for each in self.reports() if each.name == name)

    async def until(self, condition, timeout_s: float = 10.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not await condition():  # noqa: ASYNC110 - of several processes' parts
                await asyncio.sleep(0.01)


@asynccontextmanager
async def running(
    cells: dict[str, dict[str, Pool]],
    settings: EngineSettings = SETTINGS,
    grace_s: float = 30.0,
    **changes,
) -> AsyncIterator[World]:
    """Run a world of cells: `cells` gives the pools of their instances, by cell and instance."""
    world = World(replace(settings, **changes), grace_s)
    default = default_class(world.settings.slo)
    world.metrics = IngressMetrics("default", "test", [default])

    async def discover() -> dict[str, str]:
        if world.discovery_error:
            raise world.discovery_error
        return dict(world.urls)

    world.directory = CellDirectory(discover, live(), strategy(world.settings.strategy))
    world.dispatcher = Dispatcher(
        world.directory,
        default,
        live(),
        world.metrics,
        world.settings.served_name,
        world.settings.drop_late,
        world.settings.max_queue_wait_s,
    )
    await world.directory.start()
    await world.dispatcher.start()
    try:
        for cell_name, pools in cells.items():
            cell = await world.add_cell(cell_name)
            for name, pool in pools.items():
                identity = await world.add_instance(name, pool)
                await adopt(cell, identity)
        count = sum(map(len, cells.values()))

        async def ready() -> bool:
            return sum(each.cell.num_ready for each in world.directory.summaries) == count

        await world.until(ready)
        yield world
    finally:
        await world.dispatcher.stop()
        await world.directory.stop()
        for name in list(world.cells):
            await world.stop_cell(name)
        for server in world.instances.values():
            await server.stop()


async def adopt(cell: CellScheduler, identity: InstanceIdentity) -> None:
    """Adopt an instance as the admin API does, without HTTP."""
    assert await cell.adopt(identity.handle)
