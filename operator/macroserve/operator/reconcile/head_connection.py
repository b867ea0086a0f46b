"""Connection to the head of a MacroInstance: its report, and the keys for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import aiohttp

from macroserve.api.client import AdminClient, AdminError, UnauthorizedError, admin_access
from macroserve.api.keys import KeyRing
from macroserve.api.messages import HeadReport, Report
from macroserve.core.scaling.load import LoadReport
from macroserve.operator import metrics
from macroserve.operator.apply.tls import Tls, tls
from macroserve.operator.apply.tokens import TokenSecret, tokens
from macroserve.operator.k8s import names
from macroserve.operator.k8s.client import Api
from macroserve.operator.k8s.kinds import Object
from macroserve.operator.k8s.names import Key
from macroserve.operator.logs import about
from macroserve.operator.observe.pods import is_being_set_up
from macroserve.operator.render.context import RenderContext

READ_AGAIN = timedelta(seconds=10)
"""Delay until a changed secret takes effect."""


@dataclass(frozen=True, slots=True)
class HeadState:
    """Answer of a head."""

    client: AdminClient
    report: HeadReport
    load: LoadReport | None
    """None if it was not requested, or the head does not know it."""


class HeadConnection:
    """Connection to the head of one MacroInstance, with its tokens and TLS state."""

    def __init__(self, api: Api, http: aiohttp.ClientSession, key: Key) -> None:
        self._log = about(key, __name__)
        self._api = api
        self._http = http
        self._tokens: TokenSecret | None = None
        self._read_at: datetime | None = None
        self._tls: Tls | None = None
        self._tls_read_at: datetime | None = None

    async def tokens(
        self, render_context: RenderContext, pods: Sequence[Object], now: datetime
    ) -> TokenSecret:
        """Return the tokens; create them if they are absent. Raise ApiError and TokensError.

        pods: all pods that mount their Secret.
        """
        if self._tokens is None or _is_due(self._read_at, pods, now):
            self._tokens = await tokens(self._api, render_context, pods, self._tokens, now)
            self._read_at = now
        return self._tokens

    async def tls(
        self, render_context: RenderContext, pods: Sequence[Object], now: datetime
    ) -> Tls | None:
        """Return the TLS state (None: plain HTTP), after creating or renewing the certificate.

        Raises ApiError and CertificateError.

        pods: all pods that mount its Secret.
        """
        if not render_context.tls.enabled:
            return None
        if self._tls is None or _is_due(self._tls_read_at, pods, now):
            self._tls = await tls(self._api, render_context, self._tls, now)
            self._tls_read_at = now
        return self._tls

    async def ask(
        self,
        address: str,
        ring: KeyRing,
        needs_load: Callable[[Report], bool],
        tls: Tls | None = None,
    ) -> HeadState | None:
        """Return the state of the head at its pod's address, or None without a valid answer."""
        scheme = "https" if tls else "http"
        head = AdminClient(
            self._http,
            f"{scheme}://{address}:{names.HEAD_PORT}",
            admin_access(ring),
            tls.peer if tls else None,
        )
        try:
            report = await head.head_report()
        except AdminError as error:
            self._record(error)
            return None
        load = await self._load(head) if needs_load(report) else None
        return HeadState(head, report, load)

    async def _load(self, head: AdminClient) -> LoadReport | None:
        try:
            return await head.load()
        except AdminError as error:
            self._record(error)
            return None

    def _record(self, error: AdminError) -> None:
        if isinstance(error, UnauthorizedError):
            self._read_at = None
        metrics.ERRORS.labels("head").inc()
        self._log.info("head request failed", reason=str(error))


def _is_due(read_at: datetime | None, pods: Sequence[Object], now: datetime) -> bool:
    """Return whether to read a Secret again.

    While a pod is being set up, every reconcile does: without the Secret the pod waits forever.
    """
    is_old = read_at is None or now - read_at >= READ_AGAIN
    return is_old or any(is_being_set_up(pod) for pod in pods)
