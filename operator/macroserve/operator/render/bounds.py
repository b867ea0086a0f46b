"""Limits on the memory and disk of served pods, unless their template sets them.

A limit, which reserves nothing, prevents a growing pod from bringing down its node.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from macroserve.operator.k8s import names
from macroserve.operator.k8s.quantities import parsed

OTHER_CONTAINERS_MEMORY = "4Gi"
"""Limit of each container that a template adds."""
OTHER_FOLDERS_SIZE = "10Gi"
"""Limit of each ``emptyDir`` that a template adds."""


def bounded(pod: Mapping[str, Any], memory_limit: str) -> dict[str, Any]:
    """Return the pod with a memory limit per container and a size limit per ``emptyDir``.

    memory_limit: for the engine's container; a larger request in the template raises it.
    """
    spec = dict(pod["spec"])
    for field in ("initContainers", "containers"):
        if containers := spec.get(field):
            spec[field] = [_bounded_container(each, memory_limit) for each in containers]
    spec["volumes"] = [_bounded_volume(volume) for volume in spec.get("volumes") or ()]
    return {**pod, "spec": spec}


def _bounded_container(container: Mapping[str, Any], memory_limit: str) -> dict[str, Any]:
    is_engine = container.get("name") == names.CONTAINER
    default = memory_limit if is_engine else OTHER_CONTAINERS_MEMORY
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    request, limit = requests.get("memory"), limits.get("memory")
    if limit is None:
        limit = default if request is None else _larger(default, request)
    if request is not None and _larger(request, limit) == request:
        requests = {**requests, "memory": limit}
    resources = {**resources, "limits": {**limits, "memory": limit}}
    if requests:
        resources["requests"] = requests
    return {**container, "resources": resources}


def _bounded_volume(volume: Mapping[str, Any]) -> dict[str, Any]:
    """Return the volume with a size limit; one without a source counts as ``emptyDir``."""
    sources = {kind for kind, source in volume.items() if kind != "name" and source is not None}
    folder = volume.get("emptyDir") or {}
    if not sources <= {"emptyDir"} or folder.get("sizeLimit") is not None:
        return dict(volume)
    return {**volume, "emptyDir": {**folder, "sizeLimit": OTHER_FOLDERS_SIZE}}


def _larger(one: Any, other: Any) -> Any:
    """Return the larger quantity. Invalid texts, which the API server refuses, count as 0."""
    return other if _bytes(one) < _bytes(other) else one


def _bytes(quantity: Any) -> Decimal:
    return parsed(str(quantity)) or Decimal(0)
