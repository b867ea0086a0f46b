"""The parts of a Kubernetes API server that the operator uses, in memory.

It replaces ``operator.k8s.client.Api``. Tests on a real API server make the same calls.
"""

import base64
import itertools
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from macroserve.operator.k8s.client import ApiError
from macroserve.operator.k8s.kinds import MACROINSTANCE, Kind

Raw = dict[str, Any]

OWN_GRACE_S = 300
"""Termination grace period of every pod."""


class FakeApiServer:
    """An API server in memory. `before_call` may raise the error of a call; `on_change` is called
    with each change, and with None for a deleted object. `written` has the operator's objects and
    patches in order, each with its kind."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.written: list[Raw] = []
        self.before_call: Callable[[str], None] = lambda verb: None
        self.on_change: Callable[[Kind, Raw, bool], None] = lambda kind, obj, gone: None
        self._objects: dict[tuple[Kind, str, str], Raw] = {}
        self._versions = itertools.count(1)

    # -- the operator's side

    async def get(self, kind: Kind, namespace: str, name: str) -> Raw | None:
        self._called("get", kind, name)
        return _copy(self._objects.get((kind, namespace, name)))

    async def list(
        self, kind: Kind, labels: Mapping[str, str], namespace: str = "*"
    ) -> tuple[str, list[Raw]]:
        self._called("list", kind)
        found = [obj for obj in self.all(kind) if namespace in ("*", obj["metadata"]["namespace"])]
        return str(next(self._versions)), found

    async def create(self, kind: Kind, obj: Mapping[str, Any]) -> Raw:
        self._called("create", kind, obj["metadata"]["name"], obj)
        if self._key(kind, obj) in self._objects:
            raise ApiError(409, "it exists already", "AlreadyExists")
        return self.put(kind, obj)

    async def replace(self, kind: Kind, obj: Mapping[str, Any]) -> Raw:
        self._called("replace", kind, obj["metadata"]["name"], obj)
        self._check_version(kind, obj["metadata"]["name"], obj["metadata"])
        return self.put(kind, obj)

    async def apply(self, kind: Kind, obj: Mapping[str, Any]) -> Raw:
        self._called("apply", kind, obj["metadata"]["name"], obj)
        return self.put(kind, _merged(self._objects.get(self._key(kind, obj), {}), obj))

    async def apply_status(self, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        self._called("apply_status", MACROINSTANCE, name, {"status": status})
        found = self._objects.get((MACROINSTANCE, namespace, name))
        if found is None:
            raise ApiError(404, "there is none", "NotFound")
        self.put(MACROINSTANCE, {**found, "status": dict(status)})

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any]) -> Raw:
        self._called("merge", kind, name, patch)
        self._check_version(kind, name, patch.get("metadata", {}))
        found = self._objects.get((kind, namespace, name))
        if found is None:
            raise ApiError(404, "there is none", "NotFound")
        return self.put(kind, _merged(found, patch))

    async def delete(
        self, kind: Kind, namespace: str, name: str, grace_s: int | None = None
    ) -> None:
        """Mark a pod as deleted until ``remove``, which a kubelet calls; delete other objects."""
        self._called("delete", kind, name)
        found = self._objects.get((kind, namespace, name))
        if found is None:
            return
        if kind.name == "Pod" and grace_s != 0:
            metadata = found["metadata"]
            metadata.setdefault("deletionTimestamp", _now())
            metadata.setdefault("deletionGracePeriodSeconds", grace_s or OWN_GRACE_S)
            self.put(kind, found)
        else:
            self.remove(kind, found)

    # -- everybody else's side

    def all(self, kind: Kind) -> Iterator[Raw]:
        found = [obj for (of, _, _), obj in self._objects.items() if of is kind]
        return (_copy(obj) for obj in found)

    def put(self, kind: Kind, obj: Mapping[str, Any]) -> Raw:
        """Store the object in this state."""
        stored = _copy(dict(obj))
        metadata = stored["metadata"]
        metadata.setdefault("uid", f"uid-{next(self._versions)}")
        metadata.setdefault("creationTimestamp", _now())
        metadata["resourceVersion"] = str(next(self._versions))
        for name, text in stored.pop("stringData", {}).items():
            stored.setdefault("data", {})[name] = base64.b64encode(text.encode()).decode()
        self._objects[self._key(kind, stored)] = stored
        self.on_change(kind, _copy(stored), False)
        return _copy(stored)

    def remove(self, kind: Kind, obj: Mapping[str, Any]) -> None:
        if found := self._objects.pop(self._key(kind, obj), None):
            self.on_change(kind, found, True)

    def _called(
        self, verb: str, kind: Kind, name: str = "", body: Mapping[str, Any] | None = None
    ) -> None:
        self.calls.append(f"{verb} {kind.name} {name}".strip())
        if body is not None:
            typed = {**body, "apiVersion": kind.api_version, "kind": kind.name}
            self.written.append(_copy(typed))
        self.before_call(verb)

    def _check_version(self, kind: Kind, name: str, metadata: Mapping[str, Any]) -> None:
        version = metadata.get("resourceVersion")
        for (of, _, of_name), found in self._objects.items():
            present = found["metadata"]["resourceVersion"]
            if (of, of_name) == (kind, name) and version not in (None, present):
                raise ApiError(409, "the object has been modified", "Conflict")

    @staticmethod
    def _key(kind: Kind, obj: Mapping[str, Any]) -> tuple[Kind, str, str]:
        return kind, obj["metadata"]["namespace"], obj["metadata"]["name"]


def _merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> Raw:
    result = dict(base)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            result[key] = _merged(result.get(key) or {}, value)
        else:
            result[key] = value
    return result


def _copy(obj: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(obj))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
