"""The parts of a deployment on this machine that have processes of their own, and what these tell.

All of it is pickled: both ends have one version and one user.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

from macroserve.api.messages import InstanceIdentity
from macroserve.engine.settings import EngineSettings
from macroserve.serving.ingress.server import IngressOptions, IngressServer
from macroserve.serving.instance.server import InstanceOptions, InstanceServer
from macroserve.serving.instance.token_process import TokenProcess
from macroserve.serving.instance.token_server import TokenServerOptions


class Server(Protocol):
    def start(self) -> Awaitable[InstanceIdentity | None]: ...

    def check(self) -> None:
        """Raise RuntimeError when the part can serve no more."""
        ...


class Part(Protocol):
    """A part is plain data, which the process receives first."""

    def server(self) -> Server: ...


@dataclass(frozen=True, slots=True)
class InstancePart:
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
class IngressPart:
    settings: EngineSettings
    options: IngressOptions
    head: str
    """Base URL of the head, which knows the cells."""

    def server(self) -> Server:
        return IngressServer(self.settings, self.options, self.head)


@dataclass(frozen=True, slots=True)
class Started:
    """The part serves. identity: of an instance; None for an ingress replica."""

    identity: InstanceIdentity | None


@dataclass(frozen=True, slots=True)
class Beat:
    """The part's loop turns, and the part finds no fault."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The part does not start or can serve no more; its process ends next.

    cause: end of a sentence.
    """

    cause: str
