"""A deployment on a Ray cluster of this machine: starts and stops its parts, nothing more.

What should run, and when, is the reconciler's business.
"""

import asyncio
import logging
import os
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.serve.schema import ApplicationStatus

from macroserve.core.request import Slo
from macroserve.core.views import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.serving import wire
from macroserve.serving.deployments import (
    CELL_PREFIX,
    INGRESS_APP,
    CellDeployment,
    IngressDeployment,
    InstanceActor,
    instance_actors,
    instance_identities,
)
from macroserve.serving.ingress import IngressOptions
from macroserve.serving.registry import withdraw

FREE_NAME_TIMEOUT_S = 10.0
"""How long Ray may take to forget an actor that was killed."""

OBJECT_STORE_BYTES = 100 << 20
"""No tensor and no token travels through Ray's object store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """threads: compute threads of each instance (its share of the machine's cores)."""

    settings: EngineSettings
    ingress: IngressOptions
    ingress_replicas: int
    threads: int


class DeployError(Exception):
    """A server of the deployment does not start; the message says why."""


class RayCluster:
    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        self._namespace = f"macroserve-{options.ingress.macroinstance}"

    def start(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # They tell of every step of their own; a person watches this terminal.
        for name in ("ray", "ray.serve"):
            logging.getLogger(name).setLevel(logging.ERROR)
        ray.init(
            address="local",
            namespace=self._namespace,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=OBJECT_STORE_BYTES,
            num_cpus=1,
        )
        # Clients talk to the ingress replicas themselves.
        serve.start(proxy_location="Disabled")

    def stop(self) -> None:
        """End every process; safe to call in any state."""
        # The cluster is ours alone and goes with all its actors: Serve needs no farewell.
        ray.shutdown()

    # -- instances

    async def start_instance(self, name: str, pool: Pool) -> wire.InstanceIdentity:
        """Returns once it has generated a token; raises what kept it from starting.

        Whatever holds that name still, hung or left behind, is in no cell any more and goes.
        """
        options = self._options
        await self._free(name)
        remote_class: Any = ray.remote(InstanceActor)
        actor = remote_class.options(
            name=name,
            lifetime="detached",
            num_cpus=0,
            runtime_env={"env_vars": {"OMP_NUM_THREADS": str(options.threads)}},
        ).remote(
            options.settings.to_dict(),
            name,
            self._namespace,
            int(time.time() * 1000),
            options.ingress.secret,
            pool.value,
        )
        try:
            return wire.InstanceIdentity(*await actor.start.remote())
        except BaseException:
            ray.kill(actor)
            raise

    async def instances(self) -> list[wire.InstanceIdentity]:
        return await instance_identities(self._namespace)

    async def instance_names(self) -> set[str]:
        """Of the actors that live, started or still starting."""
        return set(await asyncio.to_thread(instance_actors, self._namespace))

    async def _free(self, name: str) -> None:
        give_up = time.monotonic() + FREE_NAME_TIMEOUT_S
        while name in await self.instance_names() and time.monotonic() < give_up:
            await self.kill_instance(name)
            await asyncio.sleep(0.2)

    async def kill_instance(self, name: str) -> None:
        if actor := (await asyncio.to_thread(instance_actors, self._namespace)).get(name):
            ray.kill(actor)

    # -- cells and ingress

    async def deploy_cell(self, name: str) -> None:
        settings, options = self._options.settings, self._options.ingress
        deployment: Any = CellDeployment
        app = deployment.bind(
            name, settings.strategy, _pair(settings.slo), options.secret, self._namespace
        )
        await asyncio.to_thread(_run, app, name)

    async def delete_cell(self, name: str) -> None:
        withdraw(name)
        await asyncio.to_thread(serve.delete, name)

    async def cells(self) -> set[str]:
        """Of the cell schedulers that run or are being started again."""
        status = await asyncio.to_thread(serve.status)
        return {
            name
            for name, app in status.applications.items()
            if name.startswith(CELL_PREFIX) and app.status != ApplicationStatus.DELETING
        }

    async def deploy_ingress(self) -> None:
        options = self._options
        ingress: Any = IngressDeployment
        deployment = ingress.options(num_replicas=options.ingress_replicas)
        app = deployment.bind(options.settings.to_dict(), options.ingress)
        await asyncio.to_thread(_run, app, INGRESS_APP)


def _run(app: Any, name: str) -> None:
    """Raises DeployError with what kept the application from starting."""
    try:
        serve.run(app, name=name, route_prefix=None, logging_config={"log_level": "ERROR"})
    except RuntimeError as error:
        raise DeployError(_last_error(name) or str(error)) from error


def _last_error(name: str) -> str:
    """The last line of what a replica's constructor raised, as Serve reports it."""
    application = serve.status().applications.get(name)
    if application is None:
        return ""
    for deployment in application.deployments.values():
        if lines := deployment.message.strip().splitlines():
            return lines[-1].strip()
    return application.message


def _pair(slo: Slo) -> tuple[float, float]:
    return slo.ttft_s, slo.tpot_s
