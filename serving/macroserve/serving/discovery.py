"""Discovery of the running instances and the cells that they belong to, after a restart.

Only an instance itself knows its cell. On Kubernetes instances are found by DNS, on one machine in
a registry (``ray.registry``).
"""

import asyncio
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import aiohttp
import msgspec

from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose
from macroserve.api.logs import get_logger
from macroserve.api.messages import IDENTITY_PATH, InstanceIdentity
from macroserve.serving.causes import cause_of
from macroserve.serving.security.calls import session, to
from macroserve.serving.security.key_source import KeySource, LiveKeys
from macroserve.serving.security.tls import base_url

log = get_logger(__name__)

RESOLVE_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 2.0


class InstanceDiscovery(Protocol):
    """A way to find instances, as plain data that can be sent to another process."""

    async def find(self) -> list[InstanceIdentity]:
        """Return the identities of all instances that answer."""
        ...


@dataclass(frozen=True, slots=True)
class DnsInstances:
    """Instances behind DNS names, such as that of a headless Service."""

    services: tuple[str, ...]
    """``host:port`` each."""
    keys: KeySource

    async def find(self) -> list[InstanceIdentity]:
        resolved = await asyncio.gather(*map(_resolve, self.services))
        addresses = {address for addresses in resolved for address in addresses}
        urls = [base_url(self.keys.tls, *address) for address in addresses]
        return await identities(urls, self.keys)


async def _resolve(service: str) -> list[tuple[str, int]]:
    """Resolve a name to hosts and ports; none if it does not resolve (a Service without pods)."""
    host, _, port = service.rpartition(":")
    try:
        async with asyncio.timeout(RESOLVE_TIMEOUT_S):
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, family=socket.AF_INET, type=socket.SOCK_STREAM
            )
    except (OSError, TimeoutError) as error:
        log.warning("instance discovery failed", service=service, reason=cause_of(error))
        return []
    return [(str(address[0]), int(address[1])) for *_, address in found]


async def identities(urls: Iterable[str], keys: KeySource) -> list[InstanceIdentity]:
    """Return the identities of the instances whose control servers, given by base URL, answer."""
    headers = to(Audience(Purpose.CONTROL))
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    async with session(LiveKeys(keys), timeout=timeout) as http:

        async def ask(url: str) -> InstanceIdentity | None:
            try:
                async with http.get(url + IDENTITY_PATH, headers=headers) as response:
                    response.raise_for_status()
                    return msgspec.json.decode(await response.read(), type=InstanceIdentity)
            except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError):
                return None

        answers = await asyncio.gather(*map(ask, urls))
    return [identity for identity in answers if identity is not None]
