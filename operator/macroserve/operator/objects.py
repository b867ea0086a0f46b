"""Objects of the Kubernetes API as the operator reads them: plain mappings, or parts of them."""

from collections.abc import Iterable, Mapping
from typing import Any

from macroserve.operator import names

Object = Mapping[str, Any]


def of_component(objects: Iterable[Object], component: str) -> list[Object]:
    return [obj for obj in objects if labels(obj).get(names.COMPONENT) == component]


def is_deleting(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def is_owned(obj: Object, uid: str) -> bool:
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == uid for owner in owners)


def labels(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def annotations(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("annotations") or {}


def excluded_nodes(pod: Object) -> frozenset[str]:
    """Return the nodes that its affinity was made to exclude."""
    return frozenset(filter(None, annotations(pod).get(names.EXCLUDED_NODES, "").split(",")))
