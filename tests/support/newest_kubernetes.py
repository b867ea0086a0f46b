"""Objects against the newest Kubernetes' own Go types."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from cluster import ClusterError
from cluster.decoder import Verdict, decode_strictly

ON_OLD_SERVERS = {
    # Chart and operator choose the version by the server.
    "policy/v1beta1 PodDisruptionBudget": "before Kubernetes 1.21",
}
"""APIs that the newest Kubernetes lacks, and the servers on which they are used instead of their
successors."""


def problems(objects: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the problems of objects with the newest Kubernetes, except custom resources: unknown
    fields, and deprecated or removed APIs. Skip the test if its types are not built."""
    own = [obj for obj in objects if _is_kubernetes_own(obj["apiVersion"])]
    try:
        verdicts = decode_strictly(own)
    except ClusterError as error:
        pytest.skip(str(error))
    return {
        f"{_kind(obj)} {obj.get('metadata', {}).get('name', '')}: {problem}"
        for obj, verdict in zip(own, verdicts, strict=True)
        for problem in _problems(_kind(obj), verdict)
    }


def _problems(kind: str, verdict: Verdict) -> Iterable[str]:
    if verdict.error:
        yield verdict.error
    if kind not in ON_OLD_SERVERS:
        if verdict.deprecated:
            yield f"deprecated since {verdict.deprecated}"
        if verdict.removed:
            yield f"removed in {verdict.removed}"


def _kind(obj: Mapping[str, Any]) -> str:
    return f"{obj['apiVersion']} {obj['kind']}"


def _is_kubernetes_own(api_version: str) -> bool:
    """Return whether the API is not one of a CRD: ``apps/v1`` and ``networking.k8s.io/v1`` are
    Kubernetes' own, ``cert-manager.io/v1`` is not."""
    group = api_version.rpartition("/")[0]
    return "." not in group or group.endswith(".k8s.io")
