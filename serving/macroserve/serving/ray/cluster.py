"""A deployment on a Ray cluster of this machine: starts and stops its parts, nothing more.

What should run, and when, is the reconciler's business.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from macroserve.api.handle import InstanceHandle, verify
from macroserve.api.keys import PURPOSES, KeyRing, Purpose, Role
from macroserve.api.messages import InstanceIdentity
from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.serving.discovery import ANSWER_TIMEOUT_S
from macroserve.serving.ingress.server import IngressOptions
from macroserve.serving.ray.cell_deployment import CellOptions
from macroserve.serving.ray.cells import RayCells, run_application
from macroserve.serving.ray.deployments import INGRESS_APP, IngressDeployment, InstanceActor
from macroserve.serving.ray.devices import check_free, devices_each
from macroserve.serving.ray.instances import RayInstances
from macroserve.serving.security.key_source import KeySource

FREE_NAME_TIMEOUT_S = 10.0
"""How long Ray may take to forget an actor that was killed."""
START_TIMEOUT_S = 3600.0
"""How long an instance may load its model, as long as a pod's start-up probe lets it."""
KILLED = "its process was killed or has crashed"
SILENT = "it does not answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The options of a deployment on this machine."""

    settings: EngineSettings
    ingress: IngressOptions
    ingress_replicas: int
    threads: int
    """Compute threads of each instance: its share of the machine's cores."""
    secret: str = field(repr=False)
    """Secret of this deployment; all keys follow from it."""


class RayCluster(RayCells):
    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        namespace = f"macroserve-{options.ingress.macroinstance}"
        self._instances = RayInstances(namespace)
        super().__init__(
            namespace,
            CellOptions(
                strategy=options.settings.strategy,
                slo=options.settings.slo,
                discovery=self._instances,
                keys=KeySource(PURPOSES[Role.HEAD], secret=options.secret),
            ),
        )

    # -- instances

    async def start_instance(self, name: str, pool: Pool) -> InstanceIdentity:
        """Start an instance; return once it has generated a token. Raises what kept it from
        starting, TimeoutError if it takes longer than START_TIMEOUT_S.

        Whatever holds that name still, hung or left behind, is in no cell any more and goes.
        """
        options = self._options
        await self._free(name)
        num_devices = devices_each(options.settings)
        if num_devices:
            await asyncio.to_thread(check_free, num_devices)
        remote_class: Any = ray.remote(InstanceActor)
        actor = remote_class.options(
            name=name,
            lifetime="detached",
            num_cpus=0,
            num_gpus=num_devices,
            runtime_env={"env_vars": {"OMP_NUM_THREADS": str(options.threads)}},
        ).remote(
            options.settings,
            name,
            self._namespace,
            int(time.time() * 1000),
            KeySource(PURPOSES[Role.INSTANCE], secret=options.secret),
            pool,
        )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                return await actor.start.remote()
        except BaseException:
            ray.kill(actor)
            raise

    async def instances(self) -> list[InstanceIdentity]:
        return await self._instances.find()

    def pool(self, identity: InstanceIdentity) -> Pool:
        """Return the pool of an instance, by its handle."""
        return self.handle(identity).pool

    def handle(self, identity: InstanceIdentity) -> InstanceHandle:
        """Return the verified handle of an instance. Raises HandleError."""
        ring = KeyRing.derived([self._options.secret], [Purpose.HANDLES])
        return verify(identity.handle, ring, time.time())

    async def instance_names(self) -> set[str]:
        """Return the names of the actors that live, started or still starting."""
        return await asyncio.to_thread(self._instances.names)

    async def loss_cause(self, name: str) -> str:
        """Return why an instance does not serve any more, as the end of a sentence."""
        actor = (await asyncio.to_thread(self._instances.actors)).get(name)
        if actor is None:
            return KILLED
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await actor.cause.remote() or SILENT
        except TimeoutError:
            return SILENT
        except RayError:
            return KILLED

    async def _free(self, name: str) -> None:
        give_up = time.monotonic() + FREE_NAME_TIMEOUT_S
        while name in await self.instance_names() and time.monotonic() < give_up:
            await self.kill_instance(name)
            await asyncio.sleep(0.2)

    async def kill_instance(self, name: str) -> None:
        if actor := (await asyncio.to_thread(self._instances.actors)).get(name):
            ray.kill(actor)

    # -- ingress

    async def deploy_ingress(self) -> None:
        options = self._options
        ingress: Any = IngressDeployment
        deployment = ingress.options(num_replicas=options.ingress_replicas)
        app = deployment.bind(options.settings, options.ingress)
        await asyncio.to_thread(run_application, app, INGRESS_APP)
