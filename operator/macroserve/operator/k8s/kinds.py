"""Kinds of objects that the operator reads and writes, all as plain mappings."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from macroserve.operator.k8s import names


@dataclass(frozen=True, slots=True)
class Kind:
    """A namespaced resource of the Kubernetes API; `group` is empty for the core."""

    group: str
    version: str
    name: str
    plural: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of an object, or of all in the namespace; ``*``: in all namespaces."""
        root = "/apis" if self.group else "/api"
        scope = "" if namespace == "*" else f"/namespaces/{namespace}"
        leaf = f"/{name}" if name else ""
        return f"{root}/{self.api_version}{scope}/{self.plural}{leaf}"


POD = Kind("", "v1", "Pod", "pods")
SERVICE = Kind("", "v1", "Service", "services")
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
SECRET = Kind("", "v1", "Secret", "secrets")
EVENT = Kind("", "v1", "Event", "events")
DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
REPLICA_SET = Kind("apps", "v1", "ReplicaSet", "replicasets")
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")
NETWORK_POLICY = Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
CERTIFICATE = Kind("cert-manager.io", "v1", "Certificate", "certificates")
BUDGET = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
BUDGET_BETA = Kind("policy", "v1beta1", "PodDisruptionBudget", "poddisruptionbudgets")
"""For Kubernetes before 1.21."""
AUTOSCALER = Kind("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
AUTOSCALER_BETA = Kind("autoscaling", "v2beta2", AUTOSCALER.name, AUTOSCALER.plural)
"""For Kubernetes before 1.23."""

MACROINSTANCE = Kind(names.GROUP, names.VERSION, names.KIND, names.PLURAL)

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClusterKinds:
    """Kinds in the version that a cluster serves."""

    budget: Kind = BUDGET
    autoscaler: Kind = AUTOSCALER


def of_component(objects: Iterable[Object], component: str) -> list[Object]:
    return [obj for obj in objects if labels(obj).get(names.COMPONENT) == component]


def is_deleting(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def is_owned(obj: Object, uid: str) -> bool:
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == uid for owner in owners)


def labels(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def annotations(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("annotations") or {}


def excluded_nodes(pod: Object) -> frozenset[str]:
    """Return the nodes that the pod's affinity excludes."""
    return frozenset(filter(None, annotations(pod).get(names.EXCLUDED_NODES, "").split(",")))
