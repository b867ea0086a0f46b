"""Registration of the CRD server's APIs at the API server.

An API server registers the groups and versions of all CRDs as its own. Here another server has
them, so this module registers them, or replaces the API server's registration: as soon as a CRD is
established, and not earlier, as the API server would cache that the API is missing.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from cluster.api import Api

_API = "/apis/apiregistration.k8s.io/v1/apiservices"
_CRD_SERVICE = "v1.apiextensions.k8s.io"
_CRD_SPEC = {
    "group": "apiextensions.k8s.io",
    "version": "v1",
    # Kubernetes' value for this group.
    "groupPriorityMinimum": 16700,
    "versionPriority": 15,
}
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_LABEL = "macroserve.io/e2e-registered"
_NOT_OURS = "kube-aggregator.kubernetes.io/automanaged"
"""Label of objects that the API server manages; without it they are left alone."""


@dataclass(frozen=True)
class Backend:
    """The CRD server, at a port of the API server's machine."""

    namespace: str
    name: str
    port: int
    authority: str
    """CA certificate (PEM, base64)."""

    @property
    def spec(self) -> dict[str, Any]:
        """Return the spec of this server's APIService."""
        service = {"namespace": self.namespace, "name": self.name, "port": self.port}
        return {"service": service, "caBundle": self.authority}

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Backend":
        return cls(**json.loads(text))


def serve_crds_by(backend: Backend, api: Api) -> None:
    """Register the backend for CRDs; `are_crds_served` returns when it serves them."""
    service = {
        "metadata": {"name": backend.name},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    }
    api.create(f"/api/v1/namespaces/{backend.namespace}/services", service)
    api.create(_API, {"metadata": {"name": _CRD_SERVICE}, "spec": _CRD_SPEC | backend.spec})


def are_crds_served(api: Api) -> bool:
    """Return whether clients find the API of CRDs."""
    listed = {
        version["groupVersion"]
        for group in api.get("/apis")["groups"]
        for version in group["versions"]
    }
    name = f"{_CRD_SPEC['group']}/{_CRD_SPEC['version']}"
    return name in listed and api.find(f"/apis/{name}") is not None


def registrations(crds: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the specs of the APIServices for all served versions by name, without backends."""
    return {
        f"{version['name']}.{crd['spec']['group']}": {
            "group": crd["spec"]["group"],
            "version": version["name"],
            # Kubernetes' value for CRDs.
            "groupPriorityMinimum": 1000,
            "versionPriority": 100,
        }
        for crd in crds
        if _is_true(crd, "Established")
        for version in crd["spec"]["versions"]
        if version["served"]
    }


def register(crds: Iterable[dict[str, Any]], backend: Backend, api: Api) -> None:
    """Create the APIServices that these CRDs need, and remove others that no CRD needs."""
    wanted = registrations(crds)
    found = api.get(f"{_API}?labelSelector={_LABEL}")["items"]
    present = {service["metadata"]["name"] for service in found}
    for name in wanted.keys() - present:
        metadata = {"name": name, "labels": {_LABEL: "true"}}
        if not api.create(_API, {"metadata": metadata, "spec": wanted[name] | backend.spec}):
            labels = {_LABEL: "true", _NOT_OURS: None}
            api.patch(f"{_API}/{name}", {"metadata": {"labels": labels}, "spec": backend.spec})
    for name in present - wanted.keys():
        api.delete(f"{_API}/{name}")


def is_registered(api_service: dict[str, Any]) -> bool:
    """Return whether `register` has created the APIService."""
    return _LABEL in (api_service["metadata"].get("labels") or {})


def _is_true(found: dict[str, Any], kind: str) -> bool:
    """Return whether a condition is true."""
    conditions = found.get("status", {}).get("conditions") or []
    return any(item["type"] == kind and item["status"] == "True" for item in conditions)
