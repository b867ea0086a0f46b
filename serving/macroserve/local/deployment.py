"""Process of a deployment on this machine: Ray, the components, and the reconciler.

It is separate from ``macroserve up``, because Ray can end its parent process, Ray's threads outlive
their work, and a lost control store requires a new start.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from macroserve.api.client import local_client
from macroserve.core.scaling.fleet import DesiredFleet
from macroserve.engine.exits import ended
from macroserve.local.cluster import ClusterOptions, LocalCluster
from macroserve.local.process import ChildProcess, Event, JobFailed
from macroserve.local.process_tree import adopt_orphans, end_descendants, reap_orphans
from macroserve.local.reconciler import BACKOFF, MAX_FIRST_FAILURES, NeverServedError, Reconciler
from macroserve.serving.causes import cause_of
from macroserve.serving.ray.cells import DeployError, RayLostError

STOP_TIMEOUT_S = 10.0
"""Time for the process to shut Ray down before all its descendants are killed, seconds."""
REAP_S = 1.0


@dataclass(frozen=True, slots=True)
class DeploymentJob:
    """Job of the process, which then receives a DesiredFleet whenever the manifest changes."""

    cluster: ClusterOptions
    private: str
    """Base URL of the metrics."""
    admin_token: str = field(repr=False)
    desired: DesiredFleet
    tpot_s: float
    """Target for the time per output token, seconds."""

    def run(self, parent: Connection) -> None:
        # A terminal's Ctrl-C is for the parent.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            asyncio.run(Deployment(self, parent).run())
        except Exception as error:
            parent.send(JobFailed(_reason(error)))


class DeploymentProcess:
    """Restartable process of a deployment.

    on_event: called with a sentence for each event.
    """

    def __init__(self, on_event: Callable[[str], None]) -> None:
        self._on_event = on_event
        self._process: ChildProcess | None = None
        self._reason: str | None = None

    async def run(self, setup: DeploymentJob) -> str:
        """Run the process until it ends, and return the reason as a sentence.

        All descendants have ended when this method returns or is cancelled.
        """
        self._reason = None
        adopt_orphans()
        self._process = process = ChildProcess("deployment", on_event=self._on_event)
        try:
            process.launch(setup)
            while process.alive:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REAP_S):
                        await process.end()
                reap_orphans(keep=process.pid)
            died = f"The process that runs Ray {ended(process.exit_code)}."
            return self._reason or process.failure or died
        finally:
            try:
                process.terminate()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STOP_TIMEOUT_S):
                        await process.end()
            finally:
                # Even if the wait is interrupted.
                end_descendants()
                self._process = None

    def change(self, desired: DesiredFleet) -> None:
        """Send the desired fleet to the process; a new process gets it with its job."""
        if self._process is not None:
            self._process.send(desired)

    def end(self, reason: str) -> None:
        """End the process with a reason, which ``run`` returns."""
        if self._process is not None:
            self._reason = reason
            self._process.terminate()


class Deployment:
    """A running deployment, kept as desired.

    parent: socket to ``macroserve up``.
    """

    def __init__(self, setup: DeploymentJob, parent: Connection) -> None:
        self._setup = setup
        self._parent = parent
        self._cluster = LocalCluster(setup.cluster)

    async def run(self) -> None:
        """Run the deployment until SIGTERM. Ray has ended when it returns or raises."""
        self._cancel_on_sigterm()
        try:
            await self._cluster.start()
            # Ray has installed its own handler, which ends the process at once.
            self._cancel_on_sigterm()
            self._say("Ray and Ray Serve are up")
            await self._serve()
        except asyncio.CancelledError:
            pass
        except ExceptionGroup as group:
            # The tasks end together; the first has the cause.
            raise group.exceptions[0] from group
        finally:
            await self._cluster.stop()

    def _cancel_on_sigterm(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)

    def _say(self, text: str) -> None:
        self._parent.send(Event(text))

    async def _serve(self) -> None:
        setup = self._setup
        async with local_client(self._cluster.head_url, setup.admin_token) as admin:
            reconciler = Reconciler(self._cluster, admin, setup.desired, setup.tpot_s, self._say)

            def change() -> None:
                reconciler.desired = self._parent.recv()

            loop = asyncio.get_running_loop()
            loop.add_reader(self._parent.fileno(), change)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._keep_ingress())
                    tasks.create_task(reconciler.run())
                    tasks.create_task(self._watch())
            finally:
                loop.remove_reader(self._parent.fileno())

    async def _keep_ingress(self) -> None:
        await deploy_ingress(self._cluster, self._setup, self._say)
        await self._cluster.keep_ingress(self._say)

    async def _watch(self) -> None:
        try:
            await self._cluster.watch()
        except RayLostError as error:
            self._parent.send(JobFailed(str(error)))
            # Without its servers, Ray cannot be stopped from here: the parent kills it.
            os._exit(1)


async def deploy_ingress(
    cluster: LocalCluster, setup: DeploymentJob, say: Callable[[str], None]
) -> None:
    """Start the ingress replicas, with retries. Raises DeployError with the last cause."""
    for num_failures in range(1, MAX_FIRST_FAILURES + 1):
        try:
            await cluster.deploy_ingress()
            break
        except DeployError as error:
            if num_failures == MAX_FIRST_FAILURES:
                raise
            delay_s = BACKOFF.delay_s(num_failures)
            say(f"The ingress did not start: {error} (Retry in {delay_s:.0f} s.)")
            await asyncio.sleep(delay_s)
    options = setup.cluster
    endpoint = f"http://{options.ingress.host}:{options.ingress.port}"
    say(f"{options.ingress_replicas} ingress replicas listen on {endpoint}")
    say(f"Metrics are on {setup.private}/metrics")


def _reason(error: Exception) -> str:
    match error:
        case NeverServedError():
            return f"The instances did not start: {error}"
        case DeployError():
            return f"The servers did not start: {error}"
        case _:
            return cause_of(error)
