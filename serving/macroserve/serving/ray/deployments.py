"""Ray actors and deployments beside the cell schedulers on one machine: instances, ingress
replicas.

Ray starts, watches and restarts them; requests and tokens do not travel over Ray.
"""

import asyncio
import os

from ray import serve

from macroserve.api.messages import InstanceIdentity
from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.serving import logs
from macroserve.serving.causes import cause_of
from macroserve.serving.ingress.server import IngressOptions, IngressServer
from macroserve.serving.instance.server import InstanceOptions, InstanceServer
from macroserve.serving.instance.token_process import TokenProcess
from macroserve.serving.instance.token_server import TokenServerOptions
from macroserve.serving.ray.registry import cell_urls
from macroserve.serving.security.key_source import KeySource

INGRESS_APP = "ingress"
HEALTH_CHECK_S = 1.0
INGRESS_ANSWER_TIMEOUT_S = 4.0
"""Serve ends a replica after three health checks without an answer: a hung one is gone, and its
share of new connections with it, within 15 s. No busy one is silent for so long."""
CAUSE_KEPT_S = 30.0


class InstanceActor:
    """The actor is detached and named; its process is the instance's control process."""

    def __init__(
        self,
        settings: EngineSettings,
        name: str,
        namespace: str,
        incarnation: int,
        keys: KeySource,
        pool: Pool,
    ) -> None:
        logs.configure()
        options = InstanceOptions(name, namespace, incarnation, keys, pool)
        tokens = TokenProcess(
            TokenServerOptions(
                settings=settings, name=name, pool=pool, host=options.host, keys=keys
            )
        )
        self._server = InstanceServer(settings, options, tokens)
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> InstanceIdentity:
        """Start the instance and return its identity once it serves. Raises what kept it from
        starting."""
        try:
            await self._server.start()
        except Exception as error:
            # An engine's exceptions may not survive the way to another process; their text does.
            raise RuntimeError(cause_of(error)) from None
        self._watcher = asyncio.create_task(self._watch())
        return self.identity()

    def identity(self) -> InstanceIdentity:
        return self._server.identity()

    def cause(self) -> str | None:
        """Return why the instance cannot serve, as the end of a sentence; None while it can."""
        return self._server.fault

    async def _watch(self) -> None:
        """End the process of an instance that can serve no more, after a while to be asked why."""
        try:
            while self._server.healthy:  # noqa: ASYNC110 - another process tells
                await asyncio.sleep(HEALTH_CHECK_S)
            await asyncio.sleep(CAUSE_KEPT_S)
        finally:
            os._exit(1)


@serve.deployment(
    health_check_period_s=HEALTH_CHECK_S,
    health_check_timeout_s=INGRESS_ANSWER_TIMEOUT_S,
    graceful_shutdown_timeout_s=35,
    ray_actor_options={"num_cpus": 0},
)
class IngressDeployment:
    async def __init__(self, settings: EngineSettings, options: IngressOptions) -> None:
        logs.configure()
        try:
            self._server = IngressServer(settings, options, cell_urls)
            await self._server.start()
        except Exception as error:
            raise RuntimeError(cause_of(error)) from None

    def check_health(self) -> None:
        self._server.check()

    async def __del__(self) -> None:
        await self._server.stop()
