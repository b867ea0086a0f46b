"""Options for the peers that may reach served pods."""

from typing import Any

import msgspec

Peer = dict[str, Any]
"""A ``NetworkPolicyPeer``."""

PROMETHEUS: Peer = {
    "namespaceSelector": {},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
}
"""Pods with the label that the Prometheus Operator's and Prometheus' own charts set."""


class ServedNetwork(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Options under ``networkPolicy.served`` of the chart."""

    enabled: bool = True
    """Whether the policies restrict traffic."""
    clients_from: tuple[Peer, ...] = ()
    """Peers that may call the public port; empty for all."""
    metrics_from: tuple[Peer, ...] = (PROMETHEUS,)
    """Peers that may scrape ingresses and instances."""

    @staticmethod
    def from_json(text: str) -> "ServedNetwork":
        """Parse the options. Raise ValueError."""
        return msgspec.json.decode(text, type=ServedNetwork)


DEFAULT = ServedNetwork()
