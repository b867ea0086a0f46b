"""Leader election among the operator's replicas by a Lease, as in Kubernetes' own components.

The holder renews the Lease. For a watcher it has expired when it was not renewed for its duration
on the watcher's clock, so clocks need not agree.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from macroserve.api.logs import get_logger
from macroserve.operator import metrics
from macroserve.operator.k8s import names
from macroserve.operator.k8s.client import Api, ApiError
from macroserve.operator.k8s.kinds import LEASE, Object

LEASE_S = 10.0
RENEW_EVERY_S = 2.0
GIVE_UP_S = 8.0
"""A holder stops when it could not renew for this long, before another replica may start."""
LOOK_EVERY_S = 1.0
CALL_TIMEOUT_S = 3.0

log = get_logger(__name__)


class Leader:
    """Leader election of one replica. `clock` returns monotonic seconds."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._identity = identity
        self._clock = clock
        self._seen_version = ""
        self._seen_at = clock()

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``lead`` while this replica holds the Lease; cancel it when the Lease is lost.

        Returns when cancelled, after giving the Lease back, or when ``lead`` fails.
        """
        while True:
            await self._acquire()
            log.info("leadership acquired", identity=self._identity)
            metrics.LEADER.set(1)
            leading = asyncio.create_task(lead(), name="leading")
            try:
                await self._hold_while(leading)
            finally:
                metrics.LEADER.set(0)
                leading.cancel()
                await asyncio.gather(leading, return_exceptions=True)
                await self._release()
                log.info("leadership ended", identity=self._identity)
            if not leading.cancelled():
                leading.result()

    async def _acquire(self) -> None:
        held = await self.hold()
        while not held:
            await asyncio.sleep(LOOK_EVERY_S)
            held = await self.hold()

    async def hold(self) -> bool:
        """Take the Lease if it is free, or renew it; return whether this replica holds it now."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                lease = await self._read()
                if not self._may_take(lease):
                    return False
                await self._write(lease, self._identity, LEASE_S)
        except ApiError as error:
            log.info("Lease not updated", reason=str(error))
            return False
        except TimeoutError:
            log.info("Lease not updated", reason=f"no answer within {CALL_TIMEOUT_S:g} s")
            return False
        return True

    async def _hold_while(self, leading: asyncio.Task[None]) -> None:
        """Renew the Lease until it is lost or ``leading`` has ended."""
        held_at = self._clock()
        while (left_s := held_at + GIVE_UP_S - self._clock()) > 0:
            await asyncio.wait([leading], timeout=min(RENEW_EVERY_S, left_s))
            if leading.done():
                return
            tried_at = self._clock()
            try:
                async with asyncio.timeout(max(0.0, held_at + GIVE_UP_S - tried_at)):
                    held = await self.hold()
            except TimeoutError:
                break
            if held:
                held_at = tried_at
        log.warning("leadership lost", identity=self._identity, not_renewed_for_s=GIVE_UP_S)

    async def _release(self) -> None:
        """Give the Lease back, so that other replicas need not wait until it expires."""
        with contextlib.suppress(ApiError, TimeoutError):
            async with asyncio.timeout(CALL_TIMEOUT_S):
                lease = await self._read()
                if _holder(lease) == self._identity:
                    await self._write(lease, "", 1)

    async def _read(self) -> dict[str, Any]:
        """Return the Lease; create it if it is absent. Raise ApiError."""
        lease = await self._api.get(LEASE, self._namespace, names.MANAGER)
        if lease is None:
            metadata = {"name": names.MANAGER, "namespace": self._namespace}
            lease = await self._api.create(LEASE, {"metadata": metadata, "spec": {}})
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen_version:
            self._seen_version, self._seen_at = version, self._clock()
        return lease

    def _may_take(self, lease: Object) -> bool:
        duration_s = lease.get("spec", {}).get("leaseDurationSeconds", 0)
        has_expired = self._clock() - self._seen_at > duration_s
        return _holder(lease) in ("", self._identity) or has_expired

    async def _write(self, lease: Object, holder: str, duration_s: float) -> None:
        """Write the Lease. Raise ApiError, a conflict if another replica was faster."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict(lease.get("spec", {}))
        if _holder(lease) != holder:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = spec.get("leaseTransitions", 0) + 1
        spec |= {
            "holderIdentity": holder,
            "leaseDurationSeconds": int(duration_s),
            "renewTime": now,
        }
        await self._api.replace(LEASE, {**lease, "spec": spec})


def _holder(lease: Object) -> str:
    return lease.get("spec", {}).get("holderIdentity") or ""
