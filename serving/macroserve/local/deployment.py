"""The deployment behind ``macroserve up``: Ray, the parts, and the reconciler.

Run as ``python -m macroserve.local.deployment FD``, FD being the process's end of a socket pair.
The deployment has a process of its own because Ray can end the process that has started it, Ray's
threads outlive their work, and a lost control store can only be replaced by a new start.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

from macroserve.api.client import local_client
from macroserve.engine.exits import die_with_parent
from macroserve.local.cluster import LocalCluster
from macroserve.local.messages import Event, Failed, Setup
from macroserve.local.reconciler import BACKOFF, MAX_FIRST_FAILURES, Reconciler, StartError
from macroserve.serving.causes import cause_of
from macroserve.serving.ray.cells import DeployError, RayLostError


class Deployment:
    """The deployment runs on Ray and is kept as desired.

    parent: socket to ``macroserve up``, which takes Event and Failed, and sends the desired fleet.
    """

    def __init__(self, setup: Setup, parent: Connection) -> None:
        self._setup = setup
        self._parent = parent
        self._cluster = LocalCluster(setup.cluster)

    async def run(self) -> None:
        """Run the deployment until SIGTERM. Ray has ended when it returns or raises."""
        self._cancel_on_sigterm()
        try:
            await self._cluster.start()
            # Ray has put a handler of its own in place, which ends the process on the spot.
            self._cancel_on_sigterm()
            self._say("Ray and Ray Serve are up")
            await self._serve()
        except asyncio.CancelledError:
            pass
        except ExceptionGroup as group:
            # The tasks fall together; the first that fell says why.
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
            self._parent.send(Failed(str(error)))
            # Without its servers Ray cannot be ended from here either: the parent kills it.
            os._exit(1)


async def deploy_ingress(cluster: LocalCluster, setup: Setup, say: Callable[[str], None]) -> None:
    """Start the ingress replicas. Raises DeployError with the last cause when all tries fail."""
    for num_failures in range(1, MAX_FIRST_FAILURES + 1):
        try:
            await cluster.deploy_ingress()
            break
        except DeployError as error:
            if num_failures == MAX_FIRST_FAILURES:
                raise
            delay_s = BACKOFF.delay_s(num_failures)
            say(f"The ingress did not start: {error} (It is tried again in {delay_s:.0f} s.)")
            await asyncio.sleep(delay_s)
    options = setup.cluster
    endpoint = f"http://{options.ingress.host}:{options.ingress.port}"
    say(f"{options.ingress_replicas} ingress replicas listen on {endpoint}")
    say(f"Metrics are on {setup.private}/metrics")


def _reason(error: Exception) -> str:
    match error:
        case StartError():
            return f"The instances do not start: {error}"
        case DeployError():
            return f"The servers do not start: {error}"
        case _:
            return cause_of(error)


def main(fd: int) -> None:
    die_with_parent()
    # A terminal's Ctrl-C is for the parent, which tells.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = Connection(fd)
    # The parent is gone, or wants nothing of this any more.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        setup = parent.recv()
        try:
            asyncio.run(Deployment(setup, parent).run())
        except Exception as error:
            parent.send(Failed(_reason(error)))
    # Ray's threads do not keep a process that has nothing to do.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
