"""The processes of a deployment as Ray sees them: instance actors, and Serve applications for the
cells and the ingress.

Ray starts, watches and restarts them; requests and tokens do not travel over Ray.
"""

import asyncio
import os
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.util import list_named_actors

from macroserve.core.request import Slo
from macroserve.core.strategy import strategy
from macroserve.core.views import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.serving import wire
from macroserve.serving.cell import CellScheduler
from macroserve.serving.cell_server import CellServer
from macroserve.serving.ingress import IngressOptions, IngressServer
from macroserve.serving.instance import InstanceOptions, InstanceServer
from macroserve.serving.registry import announce, cell_urls

INSTANCE_PREFIX = "instance-"
CELL_PREFIX = "cell-"
INGRESS_APP = "ingress"
HEALTH_CHECK_S = 1.0


class InstanceActor:
    """A detached, named actor; its process is the instance."""

    def __init__(
        self,
        settings: dict[str, Any],
        name: str,
        namespace: str,
        incarnation: int,
        secret: str,
        pool: str,
    ) -> None:
        options = InstanceOptions(name, namespace, incarnation, secret, Pool(pool))
        self._server = InstanceServer(EngineSettings.from_dict(settings), options)

        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> tuple[str, str, str | None]:
        """Its identity once the instance serves; raises what kept it from starting."""
        try:
            await self._server.start()
        except Exception as error:
            # An engine's exceptions may not survive the way to another process; their text does.
            raise RuntimeError(f"{type(error).__name__}: {error}") from None
        self._watcher = asyncio.create_task(self._watch())
        return self.identity()

    def identity(self) -> tuple[str, str, str | None]:
        """Fields of ``wire.InstanceIdentity``."""
        identity = self._server.identity()
        return identity.name, identity.handle, identity.cell

    async def _watch(self) -> None:
        """An instance whose engine has died must not look alive."""
        while True:
            await asyncio.sleep(HEALTH_CHECK_S)
            if not self._server.healthy:
                os._exit(1)


def instance_actors(namespace: str) -> dict[str, Any]:
    """Actor handles of the instances that live, by name."""
    names = [name for name in list_named_actors() if name.startswith(INSTANCE_PREFIX)]
    actors = {}
    for name in names:
        try:
            actors[name] = ray.get_actor(name, namespace=namespace)
        except ValueError:
            # It died since it was listed.
            continue
    return actors


async def instance_identities(namespace: str) -> list[wire.InstanceIdentity]:
    """What the living instances say of themselves; those that are still starting are left out."""
    actors = await asyncio.to_thread(instance_actors, namespace)

    async def ask(actor: Any) -> wire.InstanceIdentity | None:
        try:
            async with asyncio.timeout(2):
                return wire.InstanceIdentity(*await actor.identity.remote())
        except (TimeoutError, AssertionError, RayError):
            return None

    answers = await asyncio.gather(*(ask(actor) for actor in actors.values()))
    return [identity for identity in answers if identity is not None]


@serve.deployment(
    num_replicas=1,
    health_check_period_s=HEALTH_CHECK_S,
    health_check_timeout_s=5,
    graceful_shutdown_timeout_s=5,
    ray_actor_options={"num_cpus": 0},
)
class CellDeployment:
    async def __init__(
        self, name: str, strategy_name: str, slo: tuple[float, float], secret: str, namespace: str
    ) -> None:
        self._scheduler = CellScheduler(name, strategy(strategy_name), Slo(*slo), secret)
        self._server = CellServer(self._scheduler, secret)
        await self._scheduler.start(await instance_identities(namespace))
        announce(name, await self._server.start())

    async def __del__(self) -> None:
        await self._server.stop()
        await self._scheduler.stop()


@serve.deployment(
    health_check_period_s=HEALTH_CHECK_S,
    health_check_timeout_s=10,
    graceful_shutdown_timeout_s=35,
    ray_actor_options={"num_cpus": 0},
)
class IngressDeployment:
    async def __init__(self, settings: dict[str, Any], options: IngressOptions) -> None:
        self._server = IngressServer(EngineSettings.from_dict(settings), options, cell_urls)
        await self._server.start()

    def check_health(self) -> None:
        self._server.check()

    async def __del__(self) -> None:
        await self._server.stop()
