"""Resources that one replica of the operator holds open, and its work while it leads."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
from prometheus_client import start_http_server

from macroserve.operator.alert_server import AlertServer
from macroserve.operator.k8s.cache import Store
from macroserve.operator.k8s.client import connected
from macroserve.operator.k8s.kinds import (
    AUTOSCALER,
    AUTOSCALER_BETA,
    BUDGET,
    BUDGET_BETA,
    CERTIFICATE,
    CONFIG_MAP,
    DEPLOYMENT,
    MACROINSTANCE,
    NETWORK_POLICY,
    POD,
    REPLICA_SET,
    SERVICE,
    ClusterKinds,
    Kind,
    Object,
)
from macroserve.operator.k8s.lease import Leader
from macroserve.operator.k8s.names import Key
from macroserve.operator.k8s.watch import until_listed, watch
from macroserve.operator.options import OperatorOptions
from macroserve.operator.plan.autoscaler import Autoscaler
from macroserve.operator.reconcile.queue import WorkQueue
from macroserve.operator.reconcile.reconciler import OperatorContext, Reconciler

KEEPALIVE_S = 60.0
"""Time for which idle connections to heads are kept, seconds: longer than the time between
reconciles and shorter than the head's own."""


class Runtime:
    """Connections, watches and work queue from ``start`` to ``stop``, on one event loop."""

    def __init__(self, options: OperatorOptions) -> None:
        self._options = options
        self._namespaces = options.namespaces or ("*",)
        self._open = AsyncExitStack()
        self._context: OperatorContext
        self._issued: tuple[Kind, ...] = ()
        self._task: asyncio.Task[None]
        self.queue = WorkQueue(self._reconciler, self._forget)

    async def start(self) -> None:
        """Open the connections and join the leader election.

        Raises ApiError, or RuntimeError if the cluster lacks a kind.
        """
        options = self._options
        api = await self._open.enter_async_context(connected())
        heads = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
        http = await self._open.enter_async_context(aiohttp.ClientSession(connector=heads))
        somewhere = self._namespaces[0]
        if not await api.serves(MACROINSTANCE, somewhere):
            raise RuntimeError("The cluster has no MacroInstances: install the CRD first.")
        issued = options.served_tls.issued
        if issued and not await api.serves(CERTIFICATE, somewhere):
            raise RuntimeError("servedTls.issuerRef is set, and the cluster has no cert-manager.")
        self._issued = (CERTIFICATE,) if issued else ()
        self._context = OperatorContext(
            api=api,
            http=http,
            store=Store(self.queue.wake),
            autoscaler=Autoscaler(self.queue.wake),
            options=options,
            kinds=ClusterKinds(
                BUDGET if await api.serves(BUDGET, somewhere) else BUDGET_BETA,
                AUTOSCALER if await api.serves(AUTOSCALER, somewhere) else AUTOSCALER_BETA,
            ),
        )
        self._open.push_async_callback(self._context.autoscaler.stop)
        if options.alert_token_file:
            await self._take_alerts(options.alert_token_file)
        server, _ = start_http_server(options.metrics_port)
        self._open.callback(server.server_close)
        self._open.callback(server.shutdown)
        # A separate client, so that other calls cannot delay renewing the Lease.
        lease_api = await self._open.enter_async_context(connected())
        leader = Leader(lease_api, options.namespace, options.identity)
        self._task = asyncio.create_task(leader.run(self._lead), name="leader")

    async def _take_alerts(self, token_file: Path) -> None:
        alerts = AlertServer(
            token_file,
            leads=lambda: self.queue.is_leading,
            knows=lambda key: self.queue.resource(key) is not None,
            note=self._context.autoscaler.record_alert,
        )
        self._open.push_async_callback(alerts.stop)
        await alerts.start(self._options.alerts_port)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._open.aclose()

    def check(self) -> None:
        """Raise the error that ended the operator's work, if it has ended."""
        if self._task.done():
            self._task.result()
            raise RuntimeError("The operator's work has ended.")

    async def _lead(self) -> None:
        """Reconcile once every watch has listed its objects, so that none is created twice.

        Raises RuntimeError if some kind cannot be listed.
        """
        context = self._context
        kinds = (
            POD,
            DEPLOYMENT,
            REPLICA_SET,
            SERVICE,
            CONFIG_MAP,
            NETWORK_POLICY,
            context.kinds.budget,
            context.kinds.autoscaler,
            *self._issued,
        )
        context.store.clear()
        async with asyncio.TaskGroup() as tasks:
            for namespace in self._namespaces:
                listed = {kind: asyncio.Event() for kind in kinds}
                for kind, event in listed.items():
                    tasks.create_task(watch(context.api, context.store, kind, event, namespace))
                await until_listed(listed)
            await self.queue.lead()

    def _reconciler(self, resource: Object) -> Reconciler:
        return Reconciler(self._context, resource)

    def _forget(self, key: Key) -> None:
        self._context.autoscaler.forget(key)
