"""The Kubernetes API as the operator uses it: every call bounded in time, counted, and alike in how
it fails.

Objects are plain mappings. What the operator owns is written by server-side apply under its own
field manager, so that other writers' fields of the same object stay theirs.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any, NoReturn

import httpx2
import lightkube
from lightkube.config.kubeconfig import KubeConfig
from lightkube.types import PatchType

from macroserve.operator import metrics
from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import MACROINSTANCE_STATUS, Kind, Object, api_version

CALL_TIMEOUT_S = 10.0
MAX_CALLS = 16
"""At once, so that a start with hundreds of MacroInstances does not flood the API server."""
LIST_CHUNK = 500
_PASSING = (
    HTTPStatus.CONFLICT,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


class ApiError(Exception):
    """The API server refused a call (status: HTTP's), or did not answer it (None).

    reason: CamelCase, as the API server has it.
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
        """Whether the same call may well succeed a moment later."""
        return self.status in (None, *_PASSING)

    @property
    def is_absence(self) -> bool:
        return self.status == HTTPStatus.NOT_FOUND


class Api:
    """config: by default of the pod's service account, else of ``KUBECONFIG``."""

    def __init__(self, config: KubeConfig | None = None) -> None:
        self._client = lightkube.AsyncClient(
            config, timeout=httpx2.Timeout(CALL_TIMEOUT_S), field_manager=names.MANAGER
        )
        self._calls = asyncio.Semaphore(MAX_CALLS)

    async def close(self) -> None:
        await self._client.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        try:
            async with self._call("get"):
                return await self._client.get(kind, name, namespace=namespace)
        except ApiError as error:
            if error.is_absence:
                return None
            raise

    async def list(
        self, kind: Kind, labels: Mapping[str, str], namespace: str = "*"
    ) -> tuple[str, list[dict[str, Any]]]:
        """What is there, and as of which resource version."""
        async with self._call("list"):
            found = self._client.list(
                kind, namespace=namespace, labels=dict(labels), chunk_size=LIST_CHUNK
            )
            items: list[dict[str, Any]] = [item async for item in found]
            return found.resourceVersion, items

    async def watch(
        self,
        kind: Kind,
        labels: Mapping[str, str],
        since: str,
        server_timeout_s: int,
        namespace: str = "*",
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Event types and objects after a resource version, until an ApiError or for ever."""
        metrics.API_CALLS.labels("watch").inc()
        events = self._client.watch(
            kind,
            namespace=namespace,
            labels=dict(labels),
            server_timeout=server_timeout_s,
            resource_version=since,
        )
        try:
            async for event in events:
                yield event
        except httpx2.HTTPError as error:
            _raise(error)

    async def create(self, kind: Kind, obj: Object) -> dict[str, Any]:
        async with self._call("create"):
            return await self._client.create(_typed(kind, obj))

    async def replace(self, kind: Kind, obj: Object) -> dict[str, Any]:
        """A conflict if it has changed since the resource version that it carries."""
        async with self._call("update"):
            return await self._client.replace(_typed(kind, obj))

    async def apply(self, kind: Kind, obj: Object) -> dict[str, Any]:
        """Server-side: creates the object, or changes it and takes over the fields that differ."""
        async with self._call("apply"):
            return await self._client.apply(_typed(kind, obj), force=True)

    async def apply_status(self, namespace: str, name: str, status: Object) -> None:
        """Of a MacroInstance."""
        resource = MACROINSTANCE_STATUS._api_info.resource
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name, "namespace": namespace},
            "status": status,
        }
        async with self._call("apply"):
            await self._client.patch(
                MACROINSTANCE_STATUS,
                name,
                body,
                namespace=namespace,
                patch_type=PatchType.APPLY,
                force=True,
            )

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Object) -> dict[str, Any]:
        """A merge patch; nulls remove. A resource version in it must be the present one."""
        async with self._call("patch"):
            return await self._client.patch(
                kind, name, dict(patch), namespace=namespace, patch_type=PatchType.MERGE
            )

    async def delete(
        self, kind: Kind, namespace: str, name: str, grace_s: int | None = None
    ) -> None:
        """Does nothing when it is gone already. grace_s: instead of the object's own."""
        try:
            async with self._call("delete"):
                await self._client.delete(kind, name, namespace=namespace, grace_period=grace_s)
        except ApiError as error:
            if not error.is_absence:
                raise

    async def serves(self, kind: Kind, namespace: str = "*") -> bool:
        """Whether the API server knows the kind. namespace: where it may be listed."""
        try:
            await self.list(kind, {names.MACROINSTANCE: "none"}, namespace)
        except ApiError as error:
            if error.is_absence:
                return False
            raise
        return True

    @contextlib.asynccontextmanager
    async def _call(self, verb: str) -> AsyncIterator[None]:
        metrics.API_CALLS.labels(verb).inc()
        async with self._calls:
            try:
                yield
            except httpx2.HTTPError as error:
                _raise(error)


def _typed(kind: Kind, obj: Object) -> Any:
    typed = kind()
    typed.update(obj, apiVersion=api_version(kind), kind=kind._api_info.resource.kind)
    return typed


def _raise(error: httpx2.HTTPError) -> NoReturn:
    if isinstance(error, lightkube.ApiError):
        status = error.status
        raise ApiError(status.code, status.message or str(error), status.reason or "") from error
    if isinstance(error, httpx2.HTTPStatusError):
        raise ApiError(error.response.status_code, str(error)) from error
    raise ApiError(None, f"the API server does not answer: {error!r}") from error
