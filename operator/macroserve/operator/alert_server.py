"""Server for Alertmanager's webhook: ``POST /alerts`` with JSON, version 4, and a bearer token.

Only the replica that leads takes alerts. The others answer 503 and close the connection, so that
Alertmanager retries on a new connection, which the Service may route to the leader.
"""

from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Literal

import msgspec
from aiohttp import web
from prometheus_client import Counter

from macroserve.api.auth import TokenCheck
from macroserve.api.logs import get_logger
from macroserve.operator.k8s.names import Key
from macroserve.operator.plan.firing_alerts import Alert

MAX_BODY_BYTES = 1 << 20

log = get_logger(__name__)

ALERTS = Counter(
    "macroserve_operator_alerts",
    "Received alerts: noted, or about an unknown MacroInstance.",
    ["outcome"],
)
REFUSALS = Counter(
    "macroserve_operator_alert_refusals",
    "Refused calls: unauthorized, not_leading, malformed.",
    ["reason"],
)


class _Alert(msgspec.Struct):
    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    fingerprint: str = ""


class _Webhook(msgspec.Struct):
    version: Literal["4"]
    alerts: list[_Alert]


def decode(body: bytes) -> tuple[Alert, ...]:
    """Return the alerts of a webhook call. Raise ValueError for another kind of body."""
    try:
        webhook = msgspec.json.decode(body, type=_Webhook)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"This is not Alertmanager's webhook JSON, version 4: {error}.") from error
    return tuple(_alert(alert) for alert in webhook.alerts)


def _alert(alert: _Alert) -> Alert:
    namespace, name = alert.labels.get("namespace"), alert.labels.get("macroinstance")
    about = Key(namespace, name) if namespace and name else None
    firing = alert.status == "firing"
    return Alert(alert.labels.get("alertname", ""), about, firing, alert.fingerprint)


class AlertServer:
    """Server for the alerts that Alertmanager sends.

    token_file: contains the bearer token; read on every call, because it may be replaced.
    leads: returns whether this replica leads.
    knows: returns whether a MacroInstance exists.
    note: called with each alert about an existing MacroInstance or about none in particular.
    """

    def __init__(
        self,
        token_file: Path,
        leads: Callable[[], bool],
        knows: Callable[[Key], bool],
        note: Callable[[Alert], object],
    ) -> None:
        self._token_file = token_file
        self._leads = leads
        self._knows = knows
        self._note = note
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.add_routes([web.post("/alerts", self._receive)])
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self, port: int, host: str | None = None) -> int:
        """Listen on ``host`` (default: all addresses); return the port, a free one for 0.

        Raises OSError if the port is not available.
        """
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _receive(self, request: web.Request) -> web.Response:
        if not self._is_allowed(request):
            REFUSALS.labels("unauthorized").inc()
            headers = {"WWW-Authenticate": "Bearer"}
            return _answer(HTTPStatus.UNAUTHORIZED, "The token is missing or wrong.", headers)
        if not self._leads():
            REFUSALS.labels("not_leading").inc()
            headers = {"Connection": "close"}
            return _answer(HTTPStatus.SERVICE_UNAVAILABLE, "Another replica leads.", headers)
        try:
            alerts = decode(await request.read())
        except ValueError as error:
            REFUSALS.labels("malformed").inc()
            return _answer(HTTPStatus.BAD_REQUEST, str(error))
        for alert in alerts:
            is_known = alert.about is None or self._knows(alert.about)
            ALERTS.labels("noted" if is_known else "unknown").inc()
            if is_known:
                self._note(alert)
            else:
                log.info(
                    "alert ignored", alert=alert.name, reason=f"no MacroInstance {alert.about}"
                )
        return _answer(HTTPStatus.OK, "Taken.")

    def _is_allowed(self, request: web.Request) -> bool:
        try:
            token = self._token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            log.error("alert token not read", reason=str(error))
            return False
        return bool(token) and TokenCheck([token]).allows(request.headers)


def _answer(
    status: HTTPStatus, message: str, headers: dict[str, str] | None = None
) -> web.Response:
    return web.json_response({"message": message}, status=status, headers=headers)
