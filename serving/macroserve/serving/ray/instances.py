"""The instances of one machine, found by the URLs that they are registered with."""

import asyncio
from dataclasses import dataclass

from macroserve.api.messages import InstanceIdentity
from macroserve.serving.discovery import identities
from macroserve.serving.ray.registry import instance_urls
from macroserve.serving.security.key_source import KeySource


@dataclass(frozen=True, slots=True)
class RegisteredInstances:
    """The instances are registered in the Ray cluster of this process."""

    keys: KeySource

    async def find(self) -> list[InstanceIdentity]:
        urls = await asyncio.to_thread(instance_urls)
        return await identities(urls.values(), self.keys)
