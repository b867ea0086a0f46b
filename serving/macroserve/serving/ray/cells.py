"""A local Ray cluster that runs the cell schedulers of one deployment, as Serve applications."""

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Never

import ray
from ray import serve
from ray._private import services, worker
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview

from macroserve.serving.causes import cause_of, one_line
from macroserve.serving.ray.cell_deployment import CellDeployment, CellOptions
from macroserve.serving.ray.registry import is_announced, withdraw

OBJECT_STORE_BYTES = 100 << 20
"""Small: neither tensors nor tokens pass through Ray's object store."""
PARTS = {"gcs_server": "control store", "raylet": "node manager"}
"""Names of the Ray processes that Ray does not restart."""
START_POLL_S = 0.1
"""Interval for checking a starting scheduler; a cell's split waits for it."""
WATCH_S = 1.0
START_S = 120.0
"""Time limit for the start of Ray's node manager. A busy machine takes longer than Ray's 30 s."""
SILENCE_S = 20.0
"""Less than the 60 s after which Ray's processes end themselves, more than a busy machine takes."""


class DeployError(Exception):
    """A server of the deployment that did not start, with the cause."""


class RayLostError(Exception):
    """A part of Ray that has ended or hangs and that Ray does not restart."""


class RayCells:
    """A Ray cluster for one deployment's cell schedulers.

    namespace: Ray's namespace for the names of actors.
    """

    def __init__(self, namespace: str, options: CellOptions) -> None:
        self._namespace = namespace
        self._cell_options = options
        self._deploying: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._deployed: set[str] = set()

    def start(self) -> None:
        """Start Ray. Raises DeployError with the cause if the start fails."""
        # They log every step on the user's terminal.
        for name in ("ray", "ray.serve"):
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            with _patience():
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
            # Clients connect to the ingress replicas directly.
            serve.start(proxy_location="Disabled")
        except Exception as error:
            # For example a path that is too long, a full disk, or a process that does not start.
            raise DeployError(f"Ray: {cause_of(error)}") from error

    def stop(self) -> None:
        """End all processes of Ray; safe to call in any state."""
        # Serve needs no shutdown, as the cluster ends with all its actors.
        ray.shutdown()

    async def watch(self) -> Never:
        """Watch Ray until cancelled. Raises RayLostError when Ray's servers end or hang."""
        # A call to a control store that ends never returns, so its process is watched as well.
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
        """Start a cell scheduler; return when it runs, at once if it already does. Raises
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
                self._deployed.discard(name)  # the caller has to retry
                raise

    async def delete_cell(self, name: str) -> None:
        """Delete a cell scheduler, if it exists."""
        async with self._deploying[name]:
            self._deployed.discard(name)
            withdraw(name)
            status = await asyncio.to_thread(serve.status)
            if name in status.applications:
                await asyncio.to_thread(serve.delete, name)

    @property
    def cells(self) -> frozenset[str]:
        """Return the names of the cell schedulers that run or are being restarted. Nothing else
        deploys to this Ray, and reading Serve's own list takes ten milliseconds of CPU."""
        return frozenset(self._deployed)


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Have Ray wait START_S for its node manager; its own limit is a constant in its code."""
    ask = services.get_node

    def get_node(*args: Any) -> Any:
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                return ask(*args)
            except RuntimeError:
                # The node manager has not registered.
                if time.monotonic() > deadline_s:
                    raise
            time.sleep(START_POLL_S)

    services.get_node = get_node
    try:
        yield
    finally:
        services.get_node = ask


def _end_idle_parts() -> None:
    """End the parts of Ray that poll although a deployment does not use them: the log monitor, the
    autoscaler's monitor and the dashboard's server, which here only collects usage statistics."""
    node: Any = worker._global_node
    for end in (node.kill_log_monitor, node.kill_monitor, node.kill_dashboard):
        end(check_alive=False)


async def _watch_answers() -> Never:
    """Query the nodes from the control store each second. Raises RayLostError."""
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
    # Ray has no public API for the processes that ray.init() has started.
    node: Any = worker._global_node
    ended = {kind for kind, _ in node.dead_processes()} if node else set[str]()
    return [name for kind, name in PARTS.items() if kind in ended]


def run_application(app: Any, name: str) -> None:
    """Run a Serve application; return when it runs, which a cell scheduler announces before Serve
    notices. Raises DeployError with the cause if the start fails."""
    target = serve.RunTarget(
        app, name=name, route_prefix=None, logging_config={"log_level": "ERROR"}
    )
    try:
        # Serve itself would check only once a second.
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
