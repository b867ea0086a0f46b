"""Work queue with one worker per MacroInstance, woken by changes of its objects.

A failed reconcile is logged, counted and retried; it does not delay other MacroInstances.
"""

import asyncio
import random
import time
from collections.abc import Callable

from macroserve.operator import metrics
from macroserve.operator.k8s.client import ApiError
from macroserve.operator.k8s.kinds import Object
from macroserve.operator.k8s.names import Key
from macroserve.operator.logs import about
from macroserve.operator.reconcile.reconciler import Reconciler, Requeue

RECONCILE_TIMEOUT_S = 120.0
MIN_WAIT_S = 1.0
MAX_WAIT_S = 15.0
GAP_S = 0.1
"""Shortest pause between two reconciles; merges simultaneous changes."""


class WorkQueue:
    """Work queue with one worker per MacroInstance.

    reconciler: returns a new worker's reconciler for its resource.
    forget: called for each MacroInstance that is gone.
    """

    def __init__(
        self, reconciler: Callable[[Object], Reconciler], forget: Callable[[Key], None]
    ) -> None:
        self._reconciler = reconciler
        self._forget = forget
        self._resources: dict[Key, Object] = {}
        self._workers: dict[Key, _Worker] = {}
        self._leading = False

    def changed(self, resource: Object) -> None:
        """Record a new or changed MacroInstance."""
        key = Key.of(resource)
        before = self._resources.get(key)
        if before and _uid(before) != _uid(resource):
            self._forget(key)
        self._resources[key] = resource
        if not self._leading:
            return
        if key not in self._workers:
            self._begin(key)
        elif before is None or _essence(before) != _essence(resource):
            self._workers[key].wake(is_change=True)

    def gone(self, resource: Object) -> None:
        """Record that a MacroInstance was deleted, unless a new one of the same name exists."""
        key = Key.of(resource)
        found = self._resources.get(key)
        if found and _uid(found) == _uid(resource):
            del self._resources[key]
            self._forget(key)
        if worker := self._workers.get(key):
            worker.wake()

    def wake(self, key: Key) -> None:
        if worker := self._workers.get(key):
            worker.wake()

    @property
    def is_leading(self) -> bool:
        return self._leading

    def resource(self, key: Key) -> Object | None:
        """Return a MacroInstance as last seen, also in a replica that does not lead."""
        return self._resources.get(key)

    async def lead(self) -> None:
        """Reconcile all MacroInstances until cancelled; no reconcile runs after that."""
        self._leading = True
        try:
            for key in self._resources:
                self._begin(key)
            await asyncio.Event().wait()
        finally:
            self._leading = False
            tasks = [worker.task for worker in self._workers.values()]
            self._workers.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            metrics.MACROINSTANCES.set(0)

    def _begin(self, key: Key) -> None:
        worker = _Worker(key, lambda: self._resources.get(key), self._reconciler, self.gone)
        self._workers[key] = worker
        worker.task.add_done_callback(lambda _: self._ended(key, worker))
        metrics.MACROINSTANCES.set(len(self._workers))

    def _ended(self, key: Key, worker: "_Worker") -> None:
        if self._workers.get(key) is not worker:
            return
        del self._workers[key]
        if key in self._resources:
            self._begin(key)
        metrics.MACROINSTANCES.set(len(self._workers))


class _Worker:
    """Task that reconciles one MacroInstance when woken, until the resource is gone.

    resource: returns the current resource, None once it is gone.
    gone: called when the worker finds the resource gone.
    """

    def __init__(
        self,
        key: Key,
        resource: Callable[[], Object | None],
        reconciler: Callable[[Object], Reconciler],
        gone: Callable[[Object], None],
    ) -> None:
        self._log = about(key, __name__)
        self._resource = resource
        self._new_reconciler = reconciler
        self._gone = gone
        self._reconciler: Reconciler | None = None
        self._woken = asyncio.Event()
        self._changed_at: float | None = time.monotonic()
        self.task = asyncio.create_task(self._run(), name=f"reconciles of {key}")

    def wake(self, is_change: bool = False) -> None:
        if is_change and self._changed_at is None:
            self._changed_at = time.monotonic()
        self._woken.set()

    async def _run(self) -> None:
        wait_s = MIN_WAIT_S
        while (resource := self._resource()) is not None:
            self._woken.clear()
            changed_at, self._changed_at = self._changed_at, None
            requeue = await self._reconcile(resource)
            if requeue is Requeue.STOP:
                self._gone(resource)
                return
            if requeue is None:
                self._changed_at = changed_at
            elif changed_at is not None:
                metrics.REACTION_SECONDS.observe(time.monotonic() - changed_at)
            wait_s = MIN_WAIT_S if requeue is Requeue.SOON else min(2 * wait_s, MAX_WAIT_S)
            # After a failure, do not retry on every event of the deployment's pods.
            await asyncio.sleep(GAP_S if requeue else MIN_WAIT_S / 2)
            try:
                async with asyncio.timeout(wait_s * random.uniform(0.8, 1.2)):
                    await self._woken.wait()
            except TimeoutError:
                pass

    async def _reconcile(self, resource: Object) -> Requeue | None:
        """Reconcile once; return None on failure."""
        metrics.RECONCILES.inc()
        try:
            with metrics.RECONCILE_SECONDS.time():
                async with asyncio.timeout(RECONCILE_TIMEOUT_S):
                    if self._reconciler is None or self._reconciler.uid != _uid(resource):
                        self._reconciler = self._new_reconciler(resource)
                    return await self._reconciler.reconcile(resource)
        except ApiError as error:
            kind = "conflict" if error.is_conflict else "api"
            metrics.ERRORS.labels(kind).inc()
            self._log.info("reconcile failed", reason=str(error))
        except TimeoutError:
            metrics.ERRORS.labels("timeout").inc()
            self._log.warning("reconcile timed out", timeout_s=RECONCILE_TIMEOUT_S)
        except Exception:
            metrics.ERRORS.labels("unexpected").inc()
            self._log.exception("reconcile failed")
        return None


def _uid(resource: Object) -> str:
    return resource["metadata"]["uid"]


def _essence(resource: Object) -> tuple[object, ...]:
    """Return the fields whose change requires a reconcile: all but the status."""
    metadata = resource["metadata"]
    return (
        metadata["uid"],
        metadata["generation"],
        metadata.get("deletionTimestamp"),
        metadata.get("finalizers"),
    )
