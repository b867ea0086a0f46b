"""Options of the operator, read from the environment, which the chart sets."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from macroserve.operator.admission.pod_policy import RESTRICTED, PodPolicy
from macroserve.operator.render.served_network import DEFAULT, ServedNetwork
from macroserve.operator.render.served_tls import PLAIN, ServedTls


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """Options of one replica of the operator."""

    engine_image: str
    """Image of all pods that the operator creates."""
    engine_image_pull_policy: str
    identity: str
    """Unique name of this replica."""
    namespace: str
    """Namespace of the leader's Lease."""
    webhook_cert_dir: Path | None = None
    """Folder with ``tls.crt`` and ``tls.key``; without it no webhook is served."""
    alert_token_file: Path | None = None
    """File with the token for alerts; without it no alerts are accepted."""
    metrics_port: int = 9090
    alerts_port: int = 9095
    webhook_port: int = 9443
    namespaces: tuple[str, ...] = ()
    """Namespaces that the operator reconciles; empty means all."""
    pod_policy: PodPolicy = RESTRICTED
    served_network: ServedNetwork = DEFAULT
    served_tls: ServedTls = PLAIN

    @staticmethod
    def from_env(env: Mapping[str, str] = os.environ) -> "OperatorOptions":
        """Read the options. Raise ValueError if the image is absent or an option is invalid."""
        image = env.get("MACROSERVE_ENGINE_IMAGE", "")
        if not image:
            raise ValueError("MACROSERVE_ENGINE_IMAGE must name the image of the engines' pods")
        return OperatorOptions(
            engine_image=image,
            engine_image_pull_policy=env.get("MACROSERVE_ENGINE_IMAGE_PULL_POLICY", "IfNotPresent"),
            identity=env.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}",
            namespace=env.get("POD_NAMESPACE") or "default",
            webhook_cert_dir=_path(env.get("MACROSERVE_WEBHOOK_CERT_DIR")),
            alert_token_file=_path(env.get("MACROSERVE_ALERT_TOKEN_FILE")),
            metrics_port=int(env.get("MACROSERVE_METRICS_PORT", "9090")),
            alerts_port=int(env.get("MACROSERVE_ALERTS_PORT", "9095")),
            webhook_port=int(env.get("MACROSERVE_WEBHOOK_PORT", "9443")),
            namespaces=namespaces(env),
            pod_policy=PodPolicy.from_json(env.get("MACROSERVE_POD_POLICY") or "{}"),
            served_network=ServedNetwork.from_json(env.get("MACROSERVE_SERVED_NETWORK") or "{}"),
            served_tls=ServedTls.from_json(env.get("MACROSERVE_SERVED_TLS") or "{}"),
        )


def namespaces(env: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the namespaces in which the operator has rights; empty means all."""
    return tuple(filter(None, env.get("MACROSERVE_NAMESPACES", "").split(",")))


def _path(value: str | None) -> Path | None:
    return Path(value) if value else None
