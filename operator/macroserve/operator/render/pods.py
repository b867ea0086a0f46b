"""Base of all pods of a MacroInstance."""

from dataclasses import dataclass
from typing import Any

from macroserve.api.keys import PURPOSES, Purpose, Role
from macroserve.api.tls import AUTHORITY, CERTIFICATE, KEY
from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import Object
from macroserve.operator.render.confinement import CONTAINER_SECURITY, POD_SECURITY
from macroserve.operator.render.context import RenderContext

MANIFEST_FOLDER = "/etc/macroserve/manifest"
MANIFEST_FILE = "macroinstance.json"
ADMIN_TOKEN = "admin-token"
"""Key of the token that the head accepts for admin commands; users may replace it."""
TOKENS_FOLDER = "/etc/macroserve/tokens"
API_KEYS_FOLDER = "/etc/macroserve/api-keys"
TLS_FOLDER = "/etc/macroserve/tls"
CHAT_TEMPLATE_FOLDER = "/etc/macroserve/chat-template"
CACHE_FOLDER = "/var/cache/macroserve"
LEAVE_LOST_NODE_S = 10
"""Time for which a pod stays on an unreachable node, seconds; Kubernetes' default is 300."""


@dataclass(frozen=True, slots=True)
class FolderSizes:
    """Size limits of writable folders; ``shm`` also counts as the pod's memory."""

    tmp: str
    cache: str
    shm: str


def base_pod(
    context: RenderContext,
    component: str,
    args: list[str],
    ports: dict[str, int],
    readiness: str,
    resources: Object,
    start_s: int,
    grace_s: int,
    sizes: FolderSizes,
    env: dict[str, Object] | None = None,
) -> Object:
    """Return the ``metadata`` (labels) and ``spec`` of a pod.

    ports: ports by name; the first one is probed.
    readiness: path that answers 200 when the pod accepts requests.
    start_s: seconds after which a start counts as hung.
    env: ``value`` or ``valueFrom`` by name.
    """
    probed = next(iter(ports))
    # Ingresses are probed on their metrics port, which stays plain HTTP.
    scheme = "HTTP" if component == Role.INGRESS else context.tls.scheme.upper()
    container = {
        "name": names.CONTAINER,
        "image": context.image,
        "imagePullPolicy": context.image_pull_policy,
        "args": ["run", component, "-f", f"{MANIFEST_FOLDER}/{MANIFEST_FILE}", *args],
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()
        ],
        "env": [{"name": name, **source} for name, source in (_env() | (env or {})).items()],
        "resources": resources,
        "startupProbe": _probe("/health", probed, scheme, period_s=1, failures=start_s),
        "readinessProbe": _probe(readiness, probed, scheme, period_s=2, failures=2),
        "livenessProbe": _probe("/health", probed, scheme, period_s=10, failures=6),
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "manifest", "mountPath": MANIFEST_FOLDER, "readOnly": True},
            {"name": "tokens", "mountPath": TOKENS_FOLDER, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "cache", "mountPath": CACHE_FOLDER},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_s,
        "securityContext": POD_SECURITY,
        "tolerations": [_leaves("not-ready"), _leaves("unreachable")],
        "containers": [container],
        "volumes": [
            {"name": "manifest", "configMap": {"name": names.config_map(context.name)}},
            {
                "name": "tokens",
                "secret": {
                    "secretName": names.secret(context.name),
                    "items": _keys(Role(component)),
                    "defaultMode": 0o440,
                },
            },
            {"name": "tmp", "emptyDir": {"sizeLimit": sizes.tmp}},
            {"name": "cache", "emptyDir": {"sizeLimit": sizes.cache}},
            # Shared memory of Ray's object store and vLLM's worker processes.
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": sizes.shm}},
        ],
    }
    labels = names.labels(context.name, component)
    if context.tls.enabled:
        labels[names.TLS] = "true"
        _mount_certificate(context, spec)
    return {"metadata": {"labels": labels}, "spec": spec}


def _mount_certificate(context: RenderContext, spec: Object) -> None:
    """Mount the Secret without the authority's key. The files change when the Secret does."""
    container = spec["containers"][0]
    container["args"] += ["--tls", TLS_FOLDER]
    mount = {"name": "served-tls", "mountPath": TLS_FOLDER, "readOnly": True}
    container["volumeMounts"].append(mount)
    secret = {
        "secretName": names.tls_secret(context.name),
        "items": [{"key": key, "path": key} for key in (CERTIFICATE, KEY, AUTHORITY)],
        "defaultMode": 0o440,
    }
    spec["volumes"].append({"name": "served-tls", "secret": secret})


def key_name(purpose: Purpose) -> str:
    """Return the name of a purpose's keys in the tokens' Secret."""
    return f"key-{purpose}"


def _keys(role: Role) -> list[Object]:
    """Return the items of the tokens' Secret that a pod of the role mounts, with file names."""
    items: list[Object] = [
        {"key": key_name(purpose), "path": purpose.value} for purpose in PURPOSES[role]
    ]
    if role is Role.HEAD:
        items.append({"key": ADMIN_TOKEN, "path": ADMIN_TOKEN})
    return items


def _env() -> dict[str, Object]:
    return {
        "POD_IP": of_field("status.podIP"),
        "MACROSERVE_NAMESPACE": of_field("metadata.namespace"),
        "HOME": {"value": f"{CACHE_FOLDER}/home"},
        "XDG_CACHE_HOME": {"value": f"{CACHE_FOLDER}/cache"},
        "HF_HOME": {"value": f"{CACHE_FOLDER}/huggingface"},
    }


def of_field(path: str) -> Object:
    """Return an environment variable whose value is a field of the pod."""
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


def of_label(label: str) -> Object:
    return of_field(f"metadata.labels['{label}']")


def _probe(path: str, port: str, scheme: str, period_s: int, failures: int) -> Object:
    """Return a probe; kubelets do not verify certificates."""
    way = {} if scheme == "HTTP" else {"scheme": scheme}
    return {
        "httpGet": {"path": path, "port": port, **way},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def service_port(name: str, port: int) -> Object:
    """Return a port that leads to the container's port of that name.

    It names the protocol, part of the key in server-side apply, because older API servers do not
    fill in the default.
    """
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}


def _leaves(state: str) -> Object:
    return {
        "key": f"node.kubernetes.io/{state}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": LEAVE_LOST_NODE_S,
    }


def on_other_nodes(selector: dict[str, str]) -> Object:
    """Return an affinity that spreads pods over nodes if there are several."""
    term: dict[str, Any] = {
        "labelSelector": {"matchLabels": selector},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "podAffinityTerm": term}
            ]
        }
    }
