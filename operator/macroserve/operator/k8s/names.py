"""Names and labels of a MacroInstance's objects."""

from collections.abc import Mapping
from typing import Any, NamedTuple

GROUP = "macroserve.io"
VERSION = "v1alpha1"
PLURAL = "macroinstances"
KIND = "MacroInstance"
MANAGER = "macroserve-operator"
"""Field manager of server-side apply, value of ``managed-by``, name of the leader's Lease."""

FINALIZER = f"{GROUP}/drain"

MACROINSTANCE = f"{GROUP}/macroinstance"
COMPONENT = f"{GROUP}/component"
INSTANCE = f"{GROUP}/instance"
CELL = f"{GROUP}/cell"
POOL = f"{GROUP}/pool"

REVISION = f"{GROUP}/revision"
"""Annotation: hash of everything that is built into a pod."""
DRAINING_SINCE = f"{GROUP}/draining-since"
"""Annotation, RFC 3339; a drain's budget outlives the operator that started it."""
DRAIN_BUDGET = f"{GROUP}/drain-budget"
"""Annotation, seconds: budget of a drain when it started."""
EXCLUDED_NODES = f"{GROUP}/excluded-nodes"
"""Annotation: nodes that a pod's affinity excludes, separated by commas."""
ROTATED_AT = f"{GROUP}/rotated-at"
"""Annotation of the tokens' Secret, RFC 3339: since when keys of a former secret are kept."""
APPLIED = f"{GROUP}/applied"
"""Annotation: hash of an object as the operator applied it."""

TLS = f"{GROUP}/tls"
"""Label of a pod whose servers use TLS: ``true``."""

CONTAINER = "engine"
"""Container of each pod that runs Macroserve; a pod template changes it by this name."""
MODEL_CACHE = "model-cache"
"""Volume of ``spec.model.cache``."""

HEAD_PORT = 8100
CELL_PORTS = range(8200, 8300)
"""Ports of the head's pod, one per cell scheduler."""
PUBLIC_PORT = 8000
PRIVATE_PORT = 8001
INSTANCE_PORT = 8000
CONTROL_PORT = 8001
"""Port of an instance's probes, identity and status."""


class Key(NamedTuple):
    namespace: str
    name: str

    @staticmethod
    def of(macroinstance: Mapping[str, Any]) -> "Key":
        metadata = macroinstance["metadata"]
        return Key(metadata["namespace"], metadata["name"])

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def labels(macroinstance: str, component: str | None = None) -> dict[str, str]:
    """Return the labels of every object that belongs to a MacroInstance."""
    own = {
        "app.kubernetes.io/name": "macroserve",
        "app.kubernetes.io/managed-by": MANAGER,
        MACROINSTANCE: macroinstance,
    }
    return own if component is None else {**own, COMPONENT: component}


def selector(macroinstance: str, component: str) -> dict[str, str]:
    return {MACROINSTANCE: macroinstance, COMPONENT: component}


def head(macroinstance: str) -> str:
    return f"{macroinstance}-head"


def ingress(macroinstance: str) -> str:
    return f"{macroinstance}-ingress"


def instances_service(macroinstance: str) -> str:
    return f"{macroinstance}-instances"


def pod_name(macroinstance: str, instance: str) -> str:
    return f"{macroinstance}-{instance}"


def config_map(macroinstance: str) -> str:
    return f"{macroinstance}-manifest"


def secret(macroinstance: str) -> str:
    return f"{macroinstance}-tokens"


def tls_secret(macroinstance: str) -> str:
    """Return the name of the certificate's Secret and of cert-manager's Certificate.

    NAME-tls is often the name of an Ingress's certificate.
    """
    return f"{macroinstance}-served-tls"
