"""The kinds of object that the operator reads and writes, all as plain mappings.

lightkube has typed models of them as well; they double the operator's memory and add nothing here.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from lightkube.core.resource import ApiInfo, ResourceDef
from lightkube.generic_resource import GenericNamespacedResource, GenericNamespacedStatus

from macroserve.operator.k8s import names

Kind = type[GenericNamespacedResource]

_VERBS = ["get", "list", "global_list", "watch", "global_watch", "post", "patch", "put", "delete"]


def _kind(group: str, version: str, kind: str, plural: str) -> Kind:
    info = ApiInfo(ResourceDef(group, version, kind), plural, _VERBS)
    return type(kind, (GenericNamespacedResource,), {"_api_info": info})


POD = _kind("", "v1", "Pod", "pods")
SERVICE = _kind("", "v1", "Service", "services")
CONFIG_MAP = _kind("", "v1", "ConfigMap", "configmaps")
SECRET = _kind("", "v1", "Secret", "secrets")
EVENT = _kind("", "v1", "Event", "events")
DEPLOYMENT = _kind("apps", "v1", "Deployment", "deployments")
REPLICA_SET = _kind("apps", "v1", "ReplicaSet", "replicasets")
LEASE = _kind("coordination.k8s.io", "v1", "Lease", "leases")
NETWORK_POLICY = _kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
CERTIFICATE = _kind("cert-manager.io", "v1", "Certificate", "certificates")
BUDGET = _kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
BUDGET_BETA = _kind("policy", "v1beta1", "PodDisruptionBudget", "poddisruptionbudgets")
"""Before Kubernetes 1.21."""

MACROINSTANCE = _kind(names.GROUP, names.VERSION, names.KIND, names.PLURAL)
MACROINSTANCE_STATUS: type[GenericNamespacedStatus] = type(
    f"{names.KIND}Status",
    (GenericNamespacedStatus,),
    {
        "_api_info": ApiInfo(
            MACROINSTANCE._api_info.resource,
            names.PLURAL,
            ["patch"],
            parent=MACROINSTANCE._api_info.resource,
            action="status",
        )
    },
)


def api_version(kind: Kind) -> str:
    return kind._api_info.resource.api_version


Object = Mapping[str, Any]


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
    """Return the nodes that its affinity was made to exclude."""
    return frozenset(filter(None, annotations(pod).get(names.EXCLUDED_NODES, "").split(",")))
