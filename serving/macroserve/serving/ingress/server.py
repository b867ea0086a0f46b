"""An ingress replica: text outside, tokens inside.

Replicas on one machine share the public port (by SO_REUSEPORT, without a proxy between a client and
its tokens), and each has a private port for its peers. The public port serves the API, ``/health``
and ``/ready``; metrics and the admin API are on the private ports only.
"""

import asyncio
from dataclasses import dataclass, field
from functools import partial

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from macroserve.api.limits import RequestLimits
from macroserve.core.request import DEFAULT_CLASS
from macroserve.core.slo_class import SloClass
from macroserve.core.strategies import strategy
from macroserve.engine.settings import EngineSettings
from macroserve.serving.admin import AdminApi
from macroserve.serving.background import BackgroundTasks
from macroserve.serving.head.cells import cells_of
from macroserve.serving.heap import freeze, return_large_blocks
from macroserve.serving.http.errors import error_response
from macroserve.serving.http.protocol import HttpLimits
from macroserve.serving.http.server import HttpServer, bound
from macroserve.serving.ingress.api_keys import ApiKeySource, LiveApiKeys
from macroserve.serving.ingress.body_limit import BodyLimit
from macroserve.serving.ingress.cell_directory import CellDirectory
from macroserve.serving.ingress.cors import with_cors
from macroserve.serving.ingress.dispatcher import Dispatcher
from macroserve.serving.ingress.first_token import first_token
from macroserve.serving.ingress.gate import Gate
from macroserve.serving.ingress.metrics import (
    IngressMetrics,
    Source,
    cell_page,
    merge,
    scrape,
    sources_page,
)
from macroserve.serving.ingress.public_responses import PublicResponses
from macroserve.serving.ingress.request_check import RequestCheck
from macroserve.serving.ingress.request_targets import RequestTargets
from macroserve.serving.security.calls import session
from macroserve.serving.security.key_source import KeySource, LiveKeys

METRICS_PATH = "/macroserve/metrics"
"""Metrics of this replica and the cells, for a Prometheus that scrapes every replica."""
REQUEST_METRICS_PATH = "/macroserve/metrics/requests"
"""Metrics of this replica alone, for its peers."""
PRIVATE_GRACE_S = 5.0
PRIVATE_LIMITS = HttpLimits(max_connections=256)
"""Enough for the kubelet, Prometheus, the operator and the other replicas."""
LEAVING_S = 5.0
"""Time for which a leaving replica accepts requests, until load balancers stop sending any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressOptions:
    host: str = "127.0.0.1"
    port: int = 8000
    """Public port; all replicas on one machine share it."""
    private_host: str = "127.0.0.1"
    """Address for peers and Prometheus."""
    private_port: int = 0
    """0 means any free port."""
    shared_private_port: int | None = None
    """Second private port, shared by all replicas on one machine."""
    namespace: str = "default"
    macroinstance: str
    keys: KeySource
    admin_token: str | None = field(default=None, repr=False)
    """Token for /admin, which is not served without one."""
    api_keys: ApiKeySource | None = None
    """None means open access."""
    stream_interval: int = 1
    """Tokens of a stream in one event."""
    attainment: float = 0.9
    """Target attainment of the default class, 0 to 1."""
    grace_s: float = 30.0
    """Time for accepted requests to finish at the stop, seconds."""


class IngressServer:
    """The server of one ingress replica.

    head: base URL of the head, for the list of cells.
    """

    def __init__(
        self,
        settings: EngineSettings,
        options: IngressOptions,
        head: str,
    ) -> None:
        self._settings = settings
        self._options = options
        self._head = head
        self._default = SloClass(
            name=DEFAULT_CLASS, slo=settings.slo, attainment=options.attainment
        )
        classes = (self._default, *settings.slo_classes)
        self._metrics = IngressMetrics(options.namespace, options.macroinstance, classes)
        self._ready = False
        self._tasks = BackgroundTasks()

    async def start(self) -> None:
        """Start the replica: it listens when this returns, and is ready (``/ready``) after its
        first token. Raises ApiKeysError if API keys are required and there are none."""
        return_large_blocks()
        source = self._options.api_keys
        class_names = [each.name for each in self._settings.slo_classes]
        self._api_keys = LiveApiKeys(source, class_names) if source else None
        keys = LiveKeys(self._options.keys)
        public = bound(self._options.host, self._options.port, shared=True)
        private = [bound(self._options.private_host, self._options.private_port)]
        port = private[0].getsockname()[1]
        if shared_port := self._options.shared_private_port:
            private.append(bound(self._options.private_host, shared_port, shared=True))
        self._own_address = f"http://{self._options.private_host}:{port}"
        self._http = session(keys)
        self._discover = partial(cells_of, self._head, self._http)
        self._directory = CellDirectory(
            self._discover, keys, strategy(self._settings.strategy), self._own_address
        )
        self._dispatcher = Dispatcher(
            self._directory,
            self._default,
            keys,
            self._metrics,
            self._settings.served_name,
            self._settings.drop_late,
            self._settings.max_queue_wait_s,
        )
        await self._directory.start()
        await self._dispatcher.start()
        app, limits = await self._application()
        targets = RequestTargets(
            self._default,
            self._settings.slo_classes,
            takes_numbers=self._settings.takes_request_targets,
        )
        checked = BodyLimit(app, RequestCheck(limits, targets))
        self._public = PublicResponses(
            Gate(checked, self._api_keys),
            self._dispatcher.retry_after_s,
            has_ids=self._settings.api.get("enable_request_id_headers", False),
        )
        public_app = with_cors(self._public, self._settings.api)
        self._server = HttpServer(public_app, self._options.grace_s)
        # vLLM's error handlers read this attribute.
        app.state.server = self._server
        self._private_server = HttpServer(
            self._private_application(), PRIVATE_GRACE_S, PRIVATE_LIMITS
        )
        freeze()
        await self._private_server.start(*private)
        await self._server.start(public)
        self._tasks.start("readiness", self._become_ready(), may_end=True)
        if self._api_keys:
            self._tasks.start("API key reload", self._api_keys.follow(), may_end=True)

    async def leave(self) -> None:
        """Report not ready, and wait until load balancers stop sending requests."""
        self._public.leaving = True
        await asyncio.sleep(LEAVING_S)

    async def stop(self) -> None:
        """Stop when accepted requests have finished, within the grace period."""
        await self._tasks.stop()
        await self._server.stop()
        await self._private_server.stop()
        await self._grammars.stop()
        await self._dispatcher.stop()
        await self._directory.stop()
        await self._http.close()

    def check(self) -> None:
        """Raise RuntimeError when the replica can no longer serve."""
        if not (self._server.alive and self._private_server.alive):
            raise RuntimeError("the HTTP server has ended")
        for part in (self._tasks, self._directory, self._dispatcher):
            part.check()

    async def _application(self) -> tuple[Starlette, RequestLimits]:
        from macroserve.engine.vllm.environment import prepare_frontend

        prepare_frontend()
        from macroserve.engine.vllm.api import limits_of, text_app
        from macroserve.engine.vllm.frontend import RemoteLLM
        from macroserve.engine.vllm.grammar import GrammarChecks
        from macroserve.engine.vllm.options import frontend_config

        self._grammars = GrammarChecks(self._settings)
        self._grammars.install()
        config = frontend_config(self._settings)
        config.scheduler_config.stream_interval = self._options.stream_interval
        llm = RemoteLLM(config, self._dispatcher, self._dispatcher.admit, self._grammars)
        app = await text_app(llm, self._settings)
        app.router.routes.extend(self._probes())
        return app, limits_of(llm, app)

    def _private_application(self) -> Starlette:
        routes = [
            *self._probes(),
            Route("/metrics", self._metrics_endpoint),
            Route(METRICS_PATH, self._own_metrics),
            Route(REQUEST_METRICS_PATH, self._request_metrics),
        ]
        if token := self._options.admin_token:
            routes.extend(AdminApi(self._discover, self._http, lambda: token).routes())
        return Starlette(routes=routes)

    def _probes(self) -> list[Route]:
        return [Route("/health", self._health), Route("/ready", self._ready_endpoint)]

    async def _become_ready(self) -> None:
        await first_token(self._directory, self._dispatcher)
        self._ready = True
        # Not earlier, as its imports would delay the start.
        await self._grammars.start()

    # -- endpoints

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _ready_endpoint(self, request: Request) -> Response:
        if self._public.leaving:
            return error_response(503, "this replica is about to stop")
        if self._ready and self._directory.members:
            return Response()
        return error_response(503, "no instance has generated a token yet")

    async def _request_metrics(self, request: Request) -> Response:
        return _metrics_response(self._metrics.page())

    async def _own_metrics(self, request: Request) -> Response:
        return await _merged([Source(self._metrics.page(), {}), Source(self._cell_page(), {})])

    async def _metrics_endpoint(self, request: Request) -> Response:
        """Answer with the metrics of all ingress replicas, cells and instances."""
        peers = {a for s in self._directory.summaries for a in s.ingresses} - {self._own_address}
        members = self._directory.members.values()
        peer_pages, instance_pages = await asyncio.gather(
            asyncio.gather(*(scrape(self._http, peer + REQUEST_METRICS_PATH) for peer in peers)),
            asyncio.gather(*(scrape(self._http, m.address + "/metrics") for m in members)),
        )
        scraped = [
            *(
                Source(page, {"ingress": _replica(a)})
                for page, a in zip(peer_pages, peers, strict=True)
            ),
            *(
                Source(page, {**self._metrics.names, "instance": m.name, "pool": m.pool.value})
                for page, m in zip(instance_pages, members, strict=True)
            ),
        ]
        own = Source(self._metrics.page(), {"ingress": _replica(self._own_address)})
        answered = Source(sources_page([own, *scraped], self._metrics.names), {})
        return await _merged([own, *scraped, Source(self._cell_page(), {}), answered])

    def _cell_page(self) -> str:
        return cell_page(self._directory.summaries, self._metrics.names)


async def _merged(sources: list[Source]) -> Response:
    # In a thread: 16 instances' pages take 0.15 s, which would delay tokens.
    return _metrics_response(await asyncio.to_thread(merge, sources))


def _metrics_response(page: str) -> Response:
    return PlainTextResponse(page, media_type="text/plain; version=0.0.4")


def _replica(address: str) -> str:
    return address.removeprefix("http://")
