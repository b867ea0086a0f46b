"""Where the instances are, for whoever (re)starts and has to learn which of them are its own.

Instances are the only truth of who is in which cell; there are two ways to find them.
"""

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
import msgspec
import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose
from macroserve.api.messages import IDENTITY_PATH, InstanceIdentity
from macroserve.serving.calls import session, to
from macroserve.serving.key_source import KeySource, LiveKeys
from macroserve.serving.tls import base_url

INSTANCE_PREFIX = "instance-"
RESOLVE_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 2.0


class InstanceFinder(Protocol):
    """Plain data, so that it can go to another process."""

    async def find(self) -> list[InstanceIdentity]:
        """What the instances say of themselves; those that do not serve yet are left out."""
        ...


@dataclass(frozen=True, slots=True)
class RayInstances:
    """Named actors of a Ray namespace."""

    namespace: str

    def actors(self) -> dict[str, Any]:
        """Handles of those that live, by name."""
        names = [name for name in list_named_actors() if name.startswith(INSTANCE_PREFIX)]
        actors = {}
        for name in names:
            # It may have died since it was listed.
            with contextlib.suppress(ValueError):
                actors[name] = ray.get_actor(name, namespace=self.namespace)
        return actors

    async def find(self) -> list[InstanceIdentity]:
        actors = await asyncio.to_thread(self.actors)

        async def ask(actor: Any) -> InstanceIdentity | None:
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    return InstanceIdentity(*await actor.identity.remote())
            except (TimeoutError, AssertionError, RayError):
                return None

        return _answers(await asyncio.gather(*map(ask, actors.values())))


@dataclass(frozen=True, slots=True)
class DnsInstances:
    """Whatever listens at the addresses of names such as a headless Service's.

    services: ``host:port`` each.
    """

    services: tuple[str, ...]
    keys: KeySource

    async def find(self) -> list[InstanceIdentity]:
        resolved = await asyncio.gather(*map(_resolve, self.services))
        keys = LiveKeys(self.keys)
        headers = to(Audience(Purpose.CONTROL))
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        async with session(keys, timeout=timeout) as http:

            async def ask(host: str, port: int) -> InstanceIdentity | None:
                url = base_url(keys.tls, host, port) + IDENTITY_PATH
                try:
                    async with http.get(url, headers=headers) as response:
                        response.raise_for_status()
                        return msgspec.json.decode(await response.read(), type=InstanceIdentity)
                except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError):
                    return None

            addresses = {address for addresses in resolved for address in addresses}
            return _answers(await asyncio.gather(*(ask(*each) for each in addresses)))


async def _resolve(service: str) -> list[tuple[str, int]]:
    """Hosts and ports; none where the name does not resolve, as a Service's without pods."""
    host, _, port = service.rpartition(":")
    try:
        async with asyncio.timeout(RESOLVE_TIMEOUT_S):
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, family=socket.AF_INET, type=socket.SOCK_STREAM
            )
    except (OSError, TimeoutError):
        return []
    return [(str(address[0]), int(address[1])) for *_, address in found]


def _answers(answers: list[InstanceIdentity | None]) -> list[InstanceIdentity]:
    return [identity for identity in answers if identity is not None]
