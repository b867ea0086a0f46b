"""The instances of one machine, found by their Ray actors."""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from macroserve.api.messages import InstanceIdentity
from macroserve.serving.discovery import ANSWER_TIMEOUT_S, answered

INSTANCE_PREFIX = "instance-"


@dataclass(frozen=True, slots=True)
class RayInstances:
    """The instances are the named actors of a Ray namespace."""

    namespace: str

    def names(self) -> set[str]:
        """Return the names of the actors that live, started or still starting."""
        return {name for name in list_named_actors() if name.startswith(INSTANCE_PREFIX)}

    def actors(self) -> dict[str, Any]:
        """Return the handles of the actors that live, by name."""
        actors = {}
        for name in self.names():
            # It may have died since it was listed.
            with contextlib.suppress(ValueError):
                actors[name] = ray.get_actor(name, namespace=self.namespace)
        return actors

    async def find(self) -> list[InstanceIdentity]:
        actors = await asyncio.to_thread(self.actors)

        async def ask(actor: Any) -> InstanceIdentity | None:
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    return await actor.identity.remote()
            except (TimeoutError, AssertionError, RayError):
                return None

        return answered(await asyncio.gather(*map(ask, actors.values())))
