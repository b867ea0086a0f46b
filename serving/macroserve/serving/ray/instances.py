"""Discovery of the instances of one machine in the registry."""

import asyncio
from dataclasses import dataclass

from macroserve.api.messages import InstanceIdentity
from macroserve.serving.discovery import identities
from macroserve.serving.ray.registry import instance_urls
from macroserve.serving.security.key_source import KeySource


@dataclass(frozen=True, slots=True)
class RegisteredInstances:
    """Instances registered in this process's Ray cluster."""

    keys: KeySource

    async def find(self) -> list[InstanceIdentity]:
        urls = await asyncio.to_thread(instance_urls)
        return await identities(urls.values(), self.keys)
