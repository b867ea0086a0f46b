"""Network policies: which pods reach which ports of a MacroInstance's pods.

Only incoming traffic is restricted: ingresses and instances fetch models from anywhere. Network
    plugins always allow probes from a pod's node and a pod's traffic to itself.
"""

from collections.abc import Iterable
from typing import Any

from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import Object
from macroserve.operator.render.context import RenderContext


def policies(context: RenderContext) -> list[Object]:
    network = context.network
    ingress = [_component(context, "ingress")]
    head = [_component(context, "head")]
    operator = [_operator(context.operator_namespace)]
    metrics = list(network.metrics_from)
    rules = {
        "ingress": [
            _rule([names.PUBLIC_PORT], network.clients_from),
            _rule([names.PRIVATE_PORT], ingress + metrics),
        ],
        "head": [
            _rule([names.HEAD_PORT], ingress + operator),
            _rule(names.CELL_PORTS, ingress),
        ],
        "instance": [
            _rule([names.INSTANCE_PORT, names.CONTROL_PORT], ingress + head + operator + metrics),
        ],
    }
    return [_policy(context, component, allowed) for component, allowed in rules.items()]


def _policy(context: RenderContext, component: str, rules: list[Object]) -> Object:
    everything: list[Object] = [{}]
    return {
        "metadata": context.metadata(f"{context.name}-{component}", component),
        "spec": {
            "podSelector": {"matchLabels": names.selector(context.name, component)},
            "policyTypes": ["Ingress"],
            "ingress": rules if context.network.enabled else everything,
        },
    }


def _rule(ports: Iterable[int], peers: Iterable[Object]) -> Object:
    """Return a rule for these ports; empty `peers` allow everybody.

    Ranges are written out, because API servers before Kubernetes 1.22 ignore ``endPort``.
    """
    rule: dict[str, Any] = {"ports": [{"port": port, "protocol": "TCP"} for port in ports]}
    if allowed := list(peers):
        rule["from"] = allowed
    return rule


def _component(context: RenderContext, component: str) -> Object:
    """Return a peer: a component's pods in the same MacroInstance."""
    return {"podSelector": {"matchLabels": names.selector(context.name, component)}}


def _operator(namespace: str) -> Object:
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "podSelector": {
            "matchLabels": {
                "app.kubernetes.io/name": names.MANAGER,
                "app.kubernetes.io/component": "operator",
            }
        },
    }
