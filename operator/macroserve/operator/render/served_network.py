"""Who may reach the served pods: what the operator is told of the cluster."""

from typing import Any

import msgspec

Peer = dict[str, Any]
"""A ``NetworkPolicyPeer``."""

PROMETHEUS: Peer = {
    "namespaceSelector": {},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
}
"""As the Prometheus Operator and Prometheus' own chart label their pods."""


class ServedNetwork(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The chart's ``networkPolicy.served``.

    enabled: without it the policies let everything through. clients_from: who may call the public
    port; empty: everybody. metrics_from: who may scrape ingresses and instances.
    """

    enabled: bool = True
    clients_from: tuple[Peer, ...] = ()
    metrics_from: tuple[Peer, ...] = (PROMETHEUS,)

    @staticmethod
    def from_json(text: str) -> "ServedNetwork":
        """Raises ValueError."""
        return msgspec.json.decode(text, type=ServedNetwork)


DEFAULT = ServedNetwork()
