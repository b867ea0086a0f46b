"""The render context holds the inputs of a MacroInstance's objects."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from macroserve.api.manifest import LIVE_PARTS, Manifest
from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import Object
from macroserve.operator.render.served_network import DEFAULT, ServedNetwork
from macroserve.operator.render.served_tls import PLAIN, ServedTls

_RENDERED_PARTS = ("ingress", "template")
"""Fields of a spec that pods show once they are rendered."""


@dataclass(frozen=True)
class RenderContext:
    """The render context of a MacroInstance holds everything that its objects are built from.

    document: the resource as applied, with ``metadata`` and ``spec``.
    image: image of all pods of the MacroInstance.
    """

    manifest: Manifest
    document: Mapping[str, Any]
    namespace: str
    uid: str
    image: str
    image_pull_policy: str
    operator_namespace: str = "default"
    network: ServedNetwork = DEFAULT
    tls: ServedTls = PLAIN

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def template(self) -> Mapping[str, Any]:
        """Return the template of the instances' pods as the person wrote it."""
        return self.manifest.spec.template or {}

    def metadata(self, name: str, component: str | None = None, **more: Object) -> Object:
        """Return the metadata of an object that is deleted with the MacroInstance, with `more`
        fields such as annotations.
        """
        own_labels = {**names.labels(self.name, component), **more.pop("labels", {})}
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": own_labels,
            "ownerReferences": [
                {
                    "apiVersion": f"{names.GROUP}/{names.VERSION}",
                    "kind": names.KIND,
                    "name": self.name,
                    "uid": self.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            **more,
        }

    def revision(self, rendered: Object, *, serves_api: bool = False) -> str:
        """Return the hash of how a pod is rendered, and of the part of the manifest that it reads
        at start.

        Fields at their defaults do not count: a version that adds one replaces no pod.

        serves_api: the pod reads all of ``spec.api``; an engine reads the reasoning parser alone.
        """
        spec = self.manifest.spec.model_dump(
            by_alias=True,
            exclude_defaults=True,
            mode="json",
            exclude={*LIVE_PARTS, *_RENDERED_PARTS},
        )
        if not serves_api and (api := spec.pop("api", {})).get("reasoningParser"):
            spec["api"] = {"reasoningParser": api["reasoningParser"]}
        return digest({"spec": spec, "pod": rendered})


def digest(obj: object) -> str:
    """Return ten hexadecimal digits, the same for equal objects."""
    text = json.dumps(obj, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]
