"""Components of a deployment on this machine, started and stopped as the reconciler asks.

Instances and ingress replicas are the same processes as in pods. Cell schedulers run in Ray Serve,
with the same head as in pods.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from macroserve.api.handle import InstanceHandle, verify
from macroserve.api.keys import PURPOSES, KeyRing, Purpose, Role
from macroserve.api.messages import InstanceIdentity
from macroserve.core.backoff import Backoff
from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.local.parts import IngressPart, InstancePart
from macroserve.local.process import KILLED, SILENT, ChildProcess, ProcessError
from macroserve.serving.discovery import ANSWER_TIMEOUT_S
from macroserve.serving.head.server import HeadOptions, HeadServer
from macroserve.serving.ingress.server import IngressOptions
from macroserve.serving.instance.server import InstanceOptions
from macroserve.serving.logs import FILE_VARIABLE
from macroserve.serving.ray.cell_deployment import CellOptions
from macroserve.serving.ray.cells import DeployError, RayCells
from macroserve.serving.ray.devices import Devices, devices_each
from macroserve.serving.ray.registry import (
    RegisteredInstances,
    announce_instance,
    withdraw_instance,
)
from macroserve.serving.security.key_source import KeySource

BACKOFF = Backoff()
HOST = "127.0.0.1"
START_TIMEOUT_S = 3600.0
"""Time for an instance to load its model, seconds; a pod's startup probe allows the same."""
INGRESS_START_TIMEOUT_S = 600.0
"""Time for an ingress replica to load the tokenizer and templates, seconds."""
STEADY_S = 60.0
"""Age from which an ingress replica that ends restarts without delay, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    settings: EngineSettings
    ingress: IngressOptions
    ingress_replicas: int
    threads: int
    """Compute threads of each instance: its share of the machine's cores."""
    secret: str = field(repr=False)
    """Secret of this deployment, from which all keys are derived."""


class LocalCluster:
    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        self._namespace = f"macroserve-{options.ingress.macroinstance}"
        keys = KeySource(PURPOSES[Role.HEAD], secret=options.secret)
        self._discovery = RegisteredInstances(keys)
        self._cells = RayCells(
            self._namespace,
            CellOptions(
                strategy=options.settings.strategy,
                slo=options.settings.slo,
                discovery=self._discovery,
                keys=keys,
            ),
        )
        self._head_options = HeadOptions(
            host=HOST, port=0, keys=keys, admin_token=lambda: options.ingress.admin_token or ""
        )
        self._head: HeadServer | None = None
        self._devices = Devices((), "")
        self._instances: dict[str, ChildProcess] = {}
        self._ingress: dict[str, ChildProcess] = {}

    async def start(self) -> None:
        """Start Ray and the head. Raises DeployError if Ray does not start."""
        self._devices = Devices.of_machine()
        self._head = HeadServer(self._cells, self._discovery, self._head_options)
        await self._head.start()

    async def stop(self) -> None:
        """End every process; safe to call in any state."""
        for part in (*self._instances.values(), *self._ingress.values()):
            part.kill()
        if self._head is not None:
            await self._head.stop()

    async def watch(self) -> None:
        """Watch Ray until cancelled. Raises RayLostError when Ray's servers end or hang."""
        await self._cells.watch()

    @property
    def head_url(self) -> str:
        """Return the base URL of the admin API."""
        assert self._head is not None, "the cluster starts"
        return f"http://{HOST}:{self._head.port}"

    # -- cells

    async def deploy_cell(self, name: str) -> None:
        """See ``RayCells.deploy_cell``."""
        await self._cells.deploy_cell(name)

    async def delete_cell(self, name: str) -> None:
        """See ``RayCells.delete_cell``."""
        await self._cells.delete_cell(name)

    @property
    def cells(self) -> frozenset[str]:
        """See ``RayCells.cells``."""
        return self._cells.cells

    # -- instances

    async def start_instance(self, name: str, pool: Pool) -> InstanceIdentity:
        """Start an instance, replacing a process of its name; return once it has generated a token.

        Raises the cause if it does not start, TimeoutError after START_TIMEOUT_S.
        """
        options = self._options
        await self.kill_instance(name)
        devices = self._devices.take(name, devices_each(options.settings))
        environment = {"OMP_NUM_THREADS": str(options.threads), **devices}
        self._instances[name] = process = _part_process(name, environment)
        part = InstancePart(
            options.settings,
            InstanceOptions(
                name,
                self._namespace,
                incarnation=int(time.time() * 1000),
                keys=KeySource(PURPOSES[Role.INSTANCE], secret=options.secret),
                pool=pool,
                host=HOST,
            ),
        )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                identity = await process.start(part)
            assert identity is not None, "an instance has an identity"
            await asyncio.to_thread(announce_instance, name, self.handle(identity).control)
            return identity
        except BaseException:
            # It is not registered, and during a shutdown Ray may be gone.
            await self._end(name)
            raise

    async def instances(self) -> list[InstanceIdentity]:
        """Return the identities of the instances that answer."""
        return await self._discovery.find()

    def pool(self, identity: InstanceIdentity) -> Pool:
        return self.handle(identity).pool

    def handle(self, identity: InstanceIdentity) -> InstanceHandle:
        """Return the verified handle of an instance. Raises HandleError."""
        ring = KeyRing.derived([self._options.secret], [Purpose.HANDLES])
        return verify(identity.handle, ring, time.time())

    def instance_names(self) -> set[str]:
        """Return the names of the instances whose processes run or start."""
        return {name for name, process in self._instances.items() if process.alive}

    async def loss_cause(self, name: str) -> str:
        """Return why an instance no longer serves, as the end of a sentence."""
        process = self._instances.get(name)
        if process is None:
            return KILLED
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await process.end()
        except TimeoutError:
            return SILENT

    async def kill_instance(self, name: str) -> None:
        if name in self._instances:
            await self._end(name)
            await asyncio.to_thread(withdraw_instance, name)

    async def _end(self, name: str) -> None:
        process = self._instances.pop(name)
        process.kill()
        await process.end()
        self._devices.give_back(name)

    # -- ingress

    async def deploy_ingress(self) -> None:
        """Start the ingress replicas; return when they listen. Raises DeployError if one fails."""
        names = [f"ingress-{number}" for number in range(self._options.ingress_replicas)]
        try:
            async with asyncio.TaskGroup() as starts:
                for name in names:
                    starts.create_task(self._start_ingress(name))
        except* ProcessError as group:
            for process in self._ingress.values():
                process.kill()
            raise DeployError(str(group.exceptions[0])) from group

    async def keep_ingress(self, say: Callable[[str], None]) -> None:
        """Restart ingress replicas that end, with growing delays for those that never serve.

        say: called with a sentence for each end.
        """
        async with asyncio.TaskGroup() as tasks:
            for name, process in self._ingress.items():
                tasks.create_task(self._keep_ingress(name, process, say))

    async def _keep_ingress(
        self, name: str, process: ChildProcess, say: Callable[[str], None]
    ) -> None:
        num_failures = 0
        while True:
            served_from = time.monotonic()
            cause = await process.end()
            num_failures = 0 if time.monotonic() - served_from > STEADY_S else num_failures
            while True:
                delay_s = BACKOFF.delay_s(num_failures)
                say(f"{name} ended: {cause}. It restarts in {delay_s:.0f} s.")
                await asyncio.sleep(delay_s)
                num_failures += 1
                try:
                    process = await self._start_ingress(name)
                    break
                except ProcessError as error:
                    cause = str(error)

    async def _start_ingress(self, name: str) -> ChildProcess:
        options = self._options
        self._ingress[name] = process = _part_process(name)
        try:
            async with asyncio.timeout(INGRESS_START_TIMEOUT_S):
                await process.start(IngressPart(options.settings, options.ingress, self.head_url))
        except TimeoutError:
            raise ProcessError(SILENT) from None
        return process


def _part_process(name: str, environment: Mapping[str, str] | None = None) -> ChildProcess:
    """Return a component's process, which prints to the log file, if any."""
    return ChildProcess(name, environment, os.environ.get(FILE_VARIABLE) or os.devnull)
