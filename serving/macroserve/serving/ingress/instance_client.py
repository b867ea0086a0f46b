"""The client of an instance, which streams the tokens of a request and classifies its failures.

Instances send a frame at least every INTERVAL_S. A connection that is silent for SILENCE_S is
broken, however long the queue.
"""

import asyncio
import contextlib
import socket
from http import HTTPStatus

import aiohttp
import msgspec
from aiohttp.connector import AddrInfoType

from macroserve.core.batch import HandBackReason
from macroserve.engine.token_frames import INTERVAL_S
from macroserve.engine.tokens import (
    DEAD_END,
    HAND_BACK_PREFIX,
    Choice,
    Put,
    RefusedError,
    TokenRequest,
)
from macroserve.serving.ingress.token_connection import ConnectionEndedError, TokenConnection
from macroserve.serving.security.calls import UnprovedError, session
from macroserve.serving.security.key_source import LiveKeys

CONNECT_TIMEOUT_S = 2.0
SILENCE_S = 10 * INTERVAL_S
"""Ten missed frames: a busy machine delays one or two, and a stream in a network partition may
pause for 15 s, which leaves time to continue elsewhere."""
KEEP_ALIVE_IDLE_S, KEEP_ALIVE_INTERVAL_S, KEEP_ALIVE_PROBES = 5, 2, 3


UNREACHABLE = (UnprovedError, aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class HandedBackError(Exception):
    """The instance handed the request back."""

    def __init__(self, reason: HandBackReason) -> None:
        super().__init__(reason)
        self.reason = reason


class UnreachableError(Exception):
    """The instance did not accept the request, or another program is at its address."""


class BrokenError(Exception):
    """The instance accepted the request, then died, hung or failed."""


class SilentError(BrokenError):
    """The instance has sent nothing for SILENCE_S."""


class InstanceClient:
    """A client of all instances, with one connection to each."""

    def __init__(self, keys: LiveKeys, silence_s: float) -> None:
        self._keys = keys
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_s
        )
        self._connections: dict[str, TokenConnection] = {}
        self._connecting: dict[str, asyncio.Task[TokenConnection]] = {}
        self._http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        self._http = session(
            self._keys,
            {"limit": 0, "keepalive_timeout": 60, "socket_factory": _guarded_socket},
            timeout=self._timeout,
            read_bufsize=1 << 18,
        )

    async def stop(self) -> None:
        for connection in self._connections.values():
            connection.break_off()
        if self._http is not None:
            await self._http.close()

    @property
    def streaming(self) -> frozenset[str]:
        """Return the names of the instances with open streams."""
        return frozenset(name for name, found in self._connections.items() if found.has_streams)

    def break_off(self, instance: str) -> None:
        """End all streams from an instance; each raises BrokenError."""
        if connection := self._connections.pop(instance, None):
            connection.break_off()

    async def stream(self, instance: str, address: str, request: TokenRequest, put: Put) -> None:
        """Pass choices to ``put`` until the last one, starting with an empty one when the instance
        has accepted the request. Raises HandedBackError, UnreachableError, BrokenError or
        RefusedError."""
        try:
            connection = await self._connected(instance, address)
            last = await connection.stream(request, put)
            _check_ended(last)
            put(last)
        except UNREACHABLE as error:
            raise UnreachableError(str(error)) from error
        except aiohttp.SocketTimeoutError as error:
            raise SilentError(f"silent for {self._timeout.sock_read} s") from error
        except (aiohttp.ClientError, OSError, msgspec.MsgspecError) as error:
            raise BrokenError(repr(error)) from error
        except ConnectionEndedError as error:
            raise BrokenError(str(error)) from error

    async def _connected(self, instance: str, address: str) -> TokenConnection:
        """Return the connection to an instance; concurrent calls share one attempt to connect."""
        connection = self._connections.get(instance)
        if connection is not None and connection.open and connection.address == address:
            return connection
        attempt = self._connecting.get(address)
        if attempt is None:
            attempt = asyncio.create_task(self._connect(instance, address))
            self._connecting[address] = attempt
            attempt.add_done_callback(lambda _: self._connecting.pop(address))
        return await asyncio.shield(attempt)

    async def _connect(self, instance: str, address: str) -> TokenConnection:
        connection = TokenConnection(self._session, instance, address, _check)
        await connection.start()
        self._connections[instance] = connection
        return connection

    @property
    def _session(self) -> aiohttp.ClientSession:
        assert self._http is not None, "the client is not started"
        return self._http


def _guarded_socket(address: AddrInfoType) -> socket.socket:
    """Open a socket whose connection ends when the peer stops acknowledging."""
    family, kind, protocol, _, _ = address
    sock = socket.socket(family=family, type=kind, proto=protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEP_ALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEP_ALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEP_ALIVE_PROBES),
        ("TCP_USER_TIMEOUT", round(SILENCE_S * 1000)),
    ):
        with contextlib.suppress(AttributeError):  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return sock


async def _check(response: aiohttp.ClientResponse) -> None:
    """Raise RefusedError for a fault of the request, UnreachableError or BrokenError for one of
    the instance."""
    if response.status == HTTPStatus.OK:
        return
    text = await response.text()
    if response.status == HTTPStatus.SERVICE_UNAVAILABLE:
        raise UnreachableError("HTTP 503")
    if response.status < 500:
        try:
            message = msgspec.json.decode(text)["error"]["message"]
        except (msgspec.MsgspecError, KeyError, TypeError):
            message = text[:500]
        raise RefusedError(response.status, message)
    raise BrokenError(f"HTTP {response.status}: {text[:200]}")


def _check_ended(choice: Choice) -> None:
    if choice.finish_reason != "abort":
        return
    reason = str(choice.stop_reason or "")
    if reason.startswith(HAND_BACK_PREFIX):
        raise HandedBackError(HandBackReason(reason.removeprefix(HAND_BACK_PREFIX)))
    if reason == DEAD_END:
        raise RefusedError(
            HTTPStatus.BAD_REQUEST,
            "the schema or grammar allows no next token; the text so far cannot be completed",
        )
    raise BrokenError("the instance aborted the request")
