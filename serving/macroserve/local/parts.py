"""Jobs of local processes that serve the same components as pods."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

import uvloop

from macroserve.api.messages import InstanceIdentity
from macroserve.engine.settings import EngineSettings
from macroserve.local.process import Beat, JobFailed, JobStarted
from macroserve.serving import logs
from macroserve.serving.causes import cause_of
from macroserve.serving.ingress.server import IngressOptions, IngressServer
from macroserve.serving.instance.server import InstanceOptions, InstanceServer
from macroserve.serving.instance.token_process import TokenProcess
from macroserve.serving.instance.token_server import TokenServerOptions

BEAT_S = 1.0
"""Time between two heartbeats, each after a self-check, seconds."""


class JobServer(Protocol):
    def start(self) -> Awaitable[InstanceIdentity | None]: ...

    def check(self) -> None:
        """Raise RuntimeError if the component can serve no more."""
        ...


class ServingJob(ABC):
    """A job that serves until it fails; its start returns an instance's identity."""

    @abstractmethod
    def server(self) -> JobServer: ...

    def run(self, parent: Connection) -> None:
        logs.configure()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve(parent))

    async def _serve(self, parent: Connection) -> None:
        try:
            server = self.server()
            parent.send(JobStarted(await server.start()))
            while True:
                await asyncio.sleep(BEAT_S)
                server.check()
                parent.send(Beat())
        except Exception as error:
            # Engines and servers raise many types: a bad model, no memory, a port in use.
            parent.send(JobFailed(cause_of(error)))


@dataclass(frozen=True, slots=True)
class InstancePart(ServingJob):
    settings: EngineSettings
    options: InstanceOptions

    def server(self) -> JobServer:
        options = self.options
        tokens = TokenServerOptions(
            settings=self.settings,
            name=options.name,
            pool=options.pool,
            host=options.host,
            keys=options.keys,
        )
        return InstanceServer(self.settings, options, TokenProcess(tokens))


@dataclass(frozen=True, slots=True)
class IngressPart(ServingJob):
    settings: EngineSettings
    options: IngressOptions
    head: str
    """Base URL of the head."""

    def server(self) -> JobServer:
        return IngressServer(self.settings, self.options, self.head)
