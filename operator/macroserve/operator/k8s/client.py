"""Client of the Kubernetes API: calls have timeouts, are counted, and raise ApiError.

Objects are plain mappings. The operator writes its own objects by server-side apply under its field
manager, which preserves other writers' fields.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec
from kubernetes.aio.client import ApiClient, ApiException, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from kubernetes.aio.dynamic import DynamicClient

from macroserve.operator import metrics
from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import MACROINSTANCE, Kind, Object

CALL_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 10.0
MAX_CALLS = 16
"""Limit on simultaneous calls; hundreds of MacroInstances must not flood the API server."""
LIST_CHUNK = 500
_MERGE_PATCH = "application/merge-patch+json"
_SERVER_SIDE_APPLY = "application/apply-patch+yaml"
_PASSING = (
    HTTPStatus.CONFLICT,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


class ApiError(Exception):
    """A refused or unanswered call of the API server.

    status: HTTP status; None without a response.
    reason: CamelCase word from the API server, such as ``NotFound``.
    """

    def __init__(self, status: int | None, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

    @property
    def is_conflict(self) -> bool:
        return self.status == HTTPStatus.CONFLICT

    @property
    def is_passing(self) -> bool:
        return self.status in (None, *_PASSING)

    @property
    def is_absence(self) -> bool:
        return self.status == HTTPStatus.NOT_FOUND


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator["Api"]:
    """Connect as the pod's service account or, outside a cluster, by ``KUBECONFIG``."""
    # Each watch, one per kind and namespace, holds its connection.
    configuration = Configuration(connection_pool_maxsize=0)
    try:
        load_incluster_config(configuration)
    except ConfigException:
        await load_kube_config(client_configuration=configuration)
    async with ApiClient(configuration) as client:
        yield Api(client)


class Api:
    """Client of one API server; failed calls raise ApiError."""

    def __init__(self, client: ApiClient) -> None:
        self._client = DynamicClient(client)
        self._calls = asyncio.Semaphore(MAX_CALLS)

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        """Return an object, or None if it does not exist."""
        try:
            return await self._call("get", "GET", kind.path(namespace, name))
        except ApiError as error:
            if error.is_absence:
                return None
            raise

    async def list(
        self, kind: Kind, labels: Mapping[str, str], namespace: str = "*"
    ) -> tuple[str, list[dict[str, Any]]]:
        """Return the resource version of the list, and the objects with these labels."""
        items: list[dict[str, Any]] = []
        rest: str | None = None
        while True:
            page = await self._call(
                "list",
                "GET",
                kind.path(namespace),
                label_selector=_selector(labels),
                limit=LIST_CHUNK,
                _continue=rest,
            )
            items += page["items"]
            rest = page["metadata"].get("continue")
            if not rest:
                return page["metadata"]["resourceVersion"], items

    async def watch(
        self,
        kind: Kind,
        labels: Mapping[str, str],
        since: str,
        server_timeout_s: int,
        namespace: str = "*",
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yield event types and objects after a resource version, until an ApiError."""
        # The library's own Watch creates another ApiClient each time, which blocks for 40 ms.
        metrics.API_CALLS.labels("watch").inc()
        with _api_errors():
            response = await self._client.request(
                "GET",
                kind.path(namespace),
                serialize=False,
                watch=True,
                label_selector=_selector(labels),
                resource_version=since,
                timeout_seconds=server_timeout_s,
                _request_timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S),
            )
            async with response:
                async for line in response.content:
                    event = msgspec.json.decode(line)
                    if event["type"] == "ERROR":
                        raise _refusal(event["object"].get("code"), event["object"])
                    yield event["type"], event["object"]
        raise ApiError(None, "the API server ended the watch")

    async def create(self, kind: Kind, obj: Object) -> dict[str, Any]:
        path = kind.path(obj["metadata"]["namespace"])
        return await self._call("create", "POST", path, _typed(kind, obj))

    async def replace(self, kind: Kind, obj: Object) -> dict[str, Any]:
        """Replace an object; a conflict if it has changed since its resource version."""
        return await self._call("update", "PUT", _path(kind, obj), _typed(kind, obj))

    async def apply(self, kind: Kind, obj: Object) -> dict[str, Any]:
        """Create the object, or change it and take over the fields that differ."""
        return await self._apply(_path(kind, obj), _typed(kind, obj))

    async def apply_status(self, namespace: str, name: str, status: Object) -> None:
        metadata = {"name": name, "namespace": namespace}
        body = _typed(MACROINSTANCE, {"metadata": metadata, "status": status})
        await self._apply(f"{_path(MACROINSTANCE, body)}/status", body)

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Object) -> dict[str, Any]:
        """Merge a patch, whose nulls remove fields; a resource version in it must be current."""
        path = kind.path(namespace, name)
        return await self._call("patch", "PATCH", path, patch, content_type=_MERGE_PATCH)

    async def delete(
        self, kind: Kind, namespace: str, name: str, grace_s: int | None = None
    ) -> None:
        """Delete an object if it exists; `grace_s` replaces its own grace period."""
        try:
            path = kind.path(namespace, name)
            await self._call("delete", "DELETE", path, grace_period_seconds=grace_s)
        except ApiError as error:
            if not error.is_absence:
                raise

    async def serves(self, kind: Kind, namespace: str = "*") -> bool:
        """Return whether the API server knows the kind. `namespace`: where it may be listed."""
        try:
            await self.list(kind, {names.MACROINSTANCE: "none"}, namespace)
        except ApiError as error:
            if error.is_absence:
                return False
            raise
        return True

    async def _apply(self, path: str, body: Object) -> dict[str, Any]:
        return await self._call(
            "apply", "PATCH", path, body, content_type=_SERVER_SIDE_APPLY, force_conflicts=True
        )

    async def _call(
        self, verb: str, method: str, path: str, body: Object | None = None, **params: Any
    ) -> dict[str, Any]:
        """Send one request, counted as `verb`, and return the JSON of its response."""
        metrics.API_CALLS.labels(verb).inc()
        async with self._calls:
            with _api_errors():
                return await self._client.request(
                    method,
                    path,
                    body=body,
                    field_manager=names.MANAGER if body else None,
                    serializer=lambda client, obj: obj,
                    _request_timeout=aiohttp.ClientTimeout(CALL_TIMEOUT_S),
                    **params,
                )


def _selector(labels: Mapping[str, str]) -> str | None:
    return ",".join(f"{name}={value}" for name, value in labels.items()) or None


def _path(kind: Kind, obj: Object) -> str:
    return kind.path(obj["metadata"]["namespace"], obj["metadata"]["name"])


def _typed(kind: Kind, obj: Object) -> dict[str, Any]:
    return {**obj, "apiVersion": kind.api_version, "kind": kind.name}


@contextlib.contextmanager
def _api_errors() -> Iterator[None]:
    """Raise ApiError for each way in which a call can fail."""
    try:
        yield
    except ApiException as error:
        try:
            answer = msgspec.json.decode(error.body or "")
        except msgspec.DecodeError:
            answer = None
        raise _refusal(error.status, answer, str(error.reason)) from error
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ApiError(None, f"the API server does not answer: {error!r}") from error


def _refusal(code: int | None, answer: Any, otherwise: str = "") -> ApiError:
    """Return the error that a ``Status`` describes; proxies send other content."""
    status = answer if isinstance(answer, dict) else {}
    return ApiError(code, status.get("message") or otherwise, status.get("reason") or "")
