"""Keep a pod off nodes, in addition to the node affinity of its template.

By the nodes' names (``matchFields``), not by the label ``kubernetes.io/hostname``: that is the
kubelet's own host name, which on some clouds is not the name that a pod's ``nodeName`` tells.
"""

from collections.abc import Collection, Mapping
from typing import Any

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def excluding(spec: Mapping[str, Any], nodes: Collection[str]) -> dict[str, Any]:
    """Return the spec of a pod with an affinity that excludes the nodes in each of its terms."""
    if not nodes:
        return dict(spec)
    # An API server takes one name in each requirement; all of them hold.
    off = [
        {"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in sorted(nodes)
    ]
    affinity = spec.get("affinity") or {}
    of_nodes = affinity.get("nodeAffinity") or {}
    required = of_nodes.get(_REQUIRED)
    if required is None:
        required = {"nodeSelectorTerms": [{"matchFields": off}]}
    else:
        terms = [_with(term, off) for term in required.get("nodeSelectorTerms") or ()]
        required = {**required, "nodeSelectorTerms": terms}
    return {
        **spec,
        "affinity": {**affinity, "nodeAffinity": {**of_nodes, _REQUIRED: required}},
    }


def _with(term: Mapping[str, Any], off: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a term with the exclusion. An empty term matches no node, and stays empty."""
    fields = term.get("matchFields") or []
    if not fields and not term.get("matchExpressions"):
        return dict(term)
    return {**term, "matchFields": [*fields, *off]}
