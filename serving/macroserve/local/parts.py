"""The processes of a deployment on this machine that serve what a pod serves."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

import uvloop

from macroserve.api.messages import InstanceIdentity
from macroserve.engine.settings import EngineSettings
from macroserve.local.process import Beat, Failed, Started
from macroserve.serving import logs
from macroserve.serving.causes import cause_of
from macroserve.serving.ingress.server import IngressOptions, IngressServer
from macroserve.serving.instance.server import InstanceOptions, InstanceServer
from macroserve.serving.instance.token_process import TokenProcess
from macroserve.serving.instance.token_server import TokenServerOptions

BEAT_S = 1.0
"""Seconds between two heartbeats, before each of which the part checks itself."""


class Server(Protocol):
    def start(self) -> Awaitable[InstanceIdentity | None]: ...

    def check(self) -> None:
        """Raise RuntimeError when the part can serve no more."""
        ...


class Part(ABC):
    """A job that serves until it fails. The result of its start is the identity of an instance."""

    @abstractmethod
    def server(self) -> Server: ...

    def run(self, parent: Connection) -> None:
        logs.configure()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve(parent))

    async def _serve(self, parent: Connection) -> None:
        try:
            server = self.server()
            parent.send(Started(await server.start()))
            while True:
                await asyncio.sleep(BEAT_S)
                server.check()
                parent.send(Beat())
        except Exception as error:
            # Whatever an engine or a server raises: a bad model, no memory, a port in use.
            parent.send(Failed(cause_of(error)))


@dataclass(frozen=True, slots=True)
class InstancePart(Part):
    settings: EngineSettings
    options: InstanceOptions

    def server(self) -> Server:
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
class IngressPart(Part):
    settings: EngineSettings
    options: IngressOptions
    head: str
    """Base URL of the head, which knows the cells."""

    def server(self) -> Server:
        return IngressServer(self.settings, self.options, self.head)
