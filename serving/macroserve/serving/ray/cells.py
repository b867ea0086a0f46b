"""A Ray of this machine that runs the cell schedulers of one deployment, as Serve applications."""

import asyncio
import logging
import time
from collections import defaultdict
from typing import Any, Never

import ray
from ray import serve
from ray._private import worker
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview

from macroserve.serving.causes import cause_of, one_line
from macroserve.serving.ray.cell_deployment import CellDeployment, CellOptions
from macroserve.serving.ray.registry import is_announced, withdraw

OBJECT_STORE_BYTES = 100 << 20
"""No tensor and no token travels through Ray's object store."""
PARTS = {"gcs_server": "control store", "raylet": "node manager"}
"""Parts of Ray that it cannot start again, in words, by the names of their processes."""
START_POLL_S = 0.1
"""Seconds between two looks at a server that starts: a cell's split waits for its scheduler."""
WATCH_S = 1.0
SILENCE_S = 20.0
"""Less than Ray's processes wait before they end themselves (60 s), more than a busy machine
takes."""


class DeployError(Exception):
    """A server of the deployment does not start; the message says why."""


class RayLostError(Exception):
    """A part of Ray is gone without which nothing can be looked after; the message names it."""


class RayCells:
    """A Ray cluster runs one deployment's cell schedulers.

    namespace: Ray's namespace for the names of actors.
    """

    def __init__(self, namespace: str, options: CellOptions) -> None:
        self._namespace = namespace
        self._cell_options = options
        self._deploying: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._deployed: set[str] = set()

    def start(self) -> None:
        """Start Ray. Raises DeployError with what kept Ray from starting."""
        # They tell of every step of their own; a person watches this terminal.
        for name in ("ray", "ray.serve"):
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            ray.init(
                address="local",
                namespace=self._namespace,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=OBJECT_STORE_BYTES,
                num_cpus=1,
            )
            _end_idle_parts()
            # Clients talk to the ingress replicas themselves.
            serve.start(proxy_location="Disabled")
        except Exception as error:
            # A path that is too long, no room for its files, a process that does not come up.
            raise DeployError(f"Ray: {cause_of(error)}") from error

    def stop(self) -> None:
        """End every process; safe to call in any state."""
        # The cluster is ours alone and goes with all its actors: Serve needs no farewell.
        ray.shutdown()

    async def watch(self) -> Never:
        """Watch Ray until cancelled. Raises RayLostError when Ray's own servers end or hang."""
        # A control store that ends while it is asked leaves the question open: its process tells.
        answers = asyncio.create_task(_watch_answers())
        try:
            while True:
                await asyncio.wait([answers], timeout=WATCH_S)
                if lost := _ended_parts():
                    raise RayLostError(f"Ray's {' and '.join(lost)} has ended.")
                if answers.done():
                    answers.result()
        finally:
            answers.cancel()

    async def deploy_cell(self, name: str) -> None:
        """Start a cell scheduler; return when it runs, at once if it does already. Raises
        DeployError."""
        async with self._deploying[name]:
            self._deployed.add(name)
            if await asyncio.to_thread(is_announced, name):
                return
            deployment: Any = CellDeployment
            app = deployment.bind(name, self._cell_options)
            try:
                await asyncio.to_thread(run_application, app, name)
            except DeployError:
                self._deployed.discard(name)  # who deploys it has to try again
                raise

    async def delete_cell(self, name: str) -> None:
        """Delete a cell scheduler, if there is one of that name."""
        async with self._deploying[name]:
            self._deployed.discard(name)
            withdraw(name)
            status = await asyncio.to_thread(serve.status)
            if name in status.applications:
                await asyncio.to_thread(serve.delete, name)

    @property
    def cells(self) -> frozenset[str]:
        """Return the names of the cell schedulers that run or are being started again. Nobody else
        deploys to this Ray, and Serve's own list of them takes ten milliseconds of CPU to read."""
        return frozenset(self._deployed)


def _end_idle_parts() -> None:
    """End the parts of Ray that a deployment does not use and that poll all the same: the log
    monitor (logs have files of their own), the autoscaler's monitor and the dashboard's server,
    which without a dashboard only counts usage."""
    node: Any = worker._global_node
    for end in (node.kill_log_monitor, node.kill_monitor, node.kill_dashboard):
        end(check_alive=False)


async def _watch_answers() -> Never:
    """Ask the control store for its nodes each second. Raises RayLostError."""
    answered_s = time.monotonic()
    while True:
        await asyncio.sleep(WATCH_S)
        try:
            async with asyncio.timeout(SILENCE_S):
                nodes = await asyncio.to_thread(ray.nodes)
            answered_s = time.monotonic()
        except Exception as error:
            if time.monotonic() - answered_s > SILENCE_S:
                raise RayLostError("Ray's control store does not answer.") from error
            continue
        if not any(node["Alive"] for node in nodes):
            raise RayLostError("Ray's node manager does not answer.")


def _ended_parts() -> list[str]:
    # There is no public way to the processes that ray.init() has started.
    node: Any = worker._global_node
    ended = {kind for kind, _ in node.dead_processes()} if node else set[str]()
    return [name for kind, name in PARTS.items() if kind in ended]


def run_application(app: Any, name: str) -> None:
    """Run a Serve application; return when it runs, which a cell scheduler announces before Serve's
    controller looks. Raises DeployError with what kept the application from starting."""
    target = serve.RunTarget(
        app, name=name, route_prefix=None, logging_config={"log_level": "ERROR"}
    )
    try:
        # Serve would wait by itself, but looks only once a second.
        serve.run_many([target], wait_for_applications_running=False)
    except RuntimeError as error:
        raise DeployError(cause_of(error)) from error
    while (application := serve.status().applications.get(name)) is not None:
        if application.status == ApplicationStatus.RUNNING or is_announced(name):
            return
        if application.status == ApplicationStatus.DEPLOY_FAILED:
            raise DeployError(_error(application))
        time.sleep(START_POLL_S)
    raise DeployError(f"{name} was deleted while it started")


def _error(application: ApplicationStatusOverview) -> str:
    """Return the error of a replica's constructor, as Serve reports it."""
    for deployment in application.deployments.values():
        if message := one_line(deployment.message):
            return message
    return one_line(application.message)
