"""Options that name the peers who may reach the served pods."""

from typing import Any

import msgspec

Peer = dict[str, Any]
"""A ``NetworkPolicyPeer``."""

PROMETHEUS: Peer = {
    "namespaceSelector": {},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
}
"""Pods with the label that the Prometheus Operator and Prometheus' own chart give theirs."""


class ServedNetwork(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The options under ``networkPolicy.served`` of the chart.

    enabled: whether the policies restrict traffic.
    clients_from: peers that may call the public port; empty for all.
    metrics_from: peers that may scrape ingresses and instances.
    """

    enabled: bool = True
    clients_from: tuple[Peer, ...] = ()
    metrics_from: tuple[Peer, ...] = (PROMETHEUS,)

    @staticmethod
    def from_json(text: str) -> "ServedNetwork":
        """Parse the options. Raise ValueError."""
        return msgspec.json.decode(text, type=ServedNetwork)


DEFAULT = ServedNetwork()
