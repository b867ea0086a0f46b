"""Cache of the objects that belong to MacroInstances, kept up to date by watches."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import Kind, Object, labels
from macroserve.operator.k8s.names import Key

_METADATA = (
    "name",
    "namespace",
    "uid",
    "generation",
    "labels",
    "annotations",
    "creationTimestamp",
    "deletionTimestamp",
    "ownerReferences",
)
_SPEC = ("nodeName", "replicas")
_CONTAINER = ("name", "resources")


class Store:
    """Objects by kind and MacroInstance; `on_change` is called with the key of each change."""

    def __init__(self, on_change: Callable[[Key], None]) -> None:
        self._on_change = on_change
        self._objects: dict[Kind, dict[Key, dict[str, Object]]] = {}

    def of(self, kind: Kind, key: Key) -> Mapping[str, Object]:
        """Return the objects of a kind that belong to a MacroInstance, by name."""
        return self._objects.get(kind, {}).get(key, {})

    def replace(self, kind: Kind, objects: Iterable[Object], namespace: str = "*") -> None:
        """Replace all objects of a kind in the namespace; ``*``: in all namespaces."""
        before = self._objects.get(kind, {})
        after: dict[Key, dict[str, Object]] = {
            key: found for key, found in before.items() if namespace not in ("*", key.namespace)
        }
        for obj in map(slim, objects):
            if key := owner(obj):
                after.setdefault(key, {})[obj["metadata"]["name"]] = obj
        self._objects[kind] = after
        for key in before.keys() | after.keys():
            if before.get(key) != after.get(key):
                self._on_change(key)

    def put(self, kind: Kind, obj: Object) -> None:
        if key := owner(obj):
            of_key = self._objects.setdefault(kind, {}).setdefault(key, {})
            of_key[obj["metadata"]["name"]] = slim(obj)
            self._on_change(key)

    def drop(self, kind: Kind, obj: Object) -> None:
        if key := owner(obj):
            of_kind = self._objects.get(kind, {})
            of_key = of_kind.get(key, {})
            of_key.pop(obj["metadata"]["name"], None)
            if not of_key:
                of_kind.pop(key, None)
            self._on_change(key)

    def clear(self) -> None:
        self._objects.clear()


def owner(obj: Object) -> Key | None:
    name = labels(obj).get(names.MACROINSTANCE)
    return Key(obj["metadata"]["namespace"], name) if name else None


def slim(obj: Object) -> Object:
    """Return the fields that a reconcile reads; the others would take much memory."""
    spec = obj.get("spec") or {}
    kept: dict[str, Any] = {
        "metadata": _picked(obj["metadata"], _METADATA),
        "spec": _picked(spec, _SPEC),
    }
    if "containers" in spec:
        kept["spec"]["containers"] = [
            _picked(container, _CONTAINER) for container in spec["containers"]
        ]
    else:
        kept["fingerprint"] = fingerprint(obj)
    if status := obj.get("status"):
        kept["status"] = status
    return kept


def fingerprint(obj: Object) -> int:
    """Return a checksum of the fields of an object, other than a pod, that a person may change."""
    return zlib.crc32(msgspec.json.encode((obj.get("spec"), obj.get("data"))))


def _picked(mapping: Object, keys: Iterable[str]) -> dict[str, Any]:
    return dict(_items(mapping, keys))


def _items(mapping: Object, keys: Iterable[str]) -> Iterator[tuple[str, Any]]:
    for key in keys:
        if key in mapping:
            yield key, mapping[key]
