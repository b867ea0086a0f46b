"""Inputs of a MacroInstance's rendered objects."""

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

_RENDERED_PARTS = ("head", "ingress", "template")
"""Fields of a spec that are visible in rendered pods."""


@dataclass(frozen=True)
class RenderContext:
    """All inputs from which a MacroInstance's objects are rendered."""

    manifest: Manifest
    document: Mapping[str, Any]
    """The resource as applied, with ``metadata`` and ``spec``."""
    namespace: str
    uid: str
    image: str
    """Image of all pods of the MacroInstance."""
    image_pull_policy: str
    operator_namespace: str = "default"
    network: ServedNetwork = DEFAULT
    tls: ServedTls = PLAIN

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def template(self) -> Mapping[str, Any]:
        """Return the user's template of the instances' pods."""
        return self.manifest.spec.template or {}

    def metadata(self, name: str, component: str | None = None, **more: Object) -> Object:
        """Return the metadata of an object that is deleted with the MacroInstance.

        more: further fields, such as annotations.
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
        """Return the hash of a rendered pod and of the manifest's fields that it reads at start.

        Fields at their defaults do not count, so an upgrade that adds one replaces no pods.

        serves_api: the pod reads ``spec.ingress.streamInterval`` and all of ``spec.api``; an engine
            reads only the reasoning parser.
        """
        spec = self.manifest.spec.model_dump(
            by_alias=True,
            exclude_defaults=True,
            mode="json",
            exclude={*LIVE_PARTS, *_RENDERED_PARTS},
        )
        if serves_api and (interval := self.manifest.spec.ingress.stream_interval) != 1:
            spec["ingress"] = {"streamInterval": interval}
        if not serves_api and (api := spec.pop("api", {})).get("reasoningParser"):
            spec["api"] = {"reasoningParser": api["reasoningParser"]}
        return digest({"spec": spec, "pod": rendered})


def digest(obj: object) -> str:
    """Return ten hexadecimal digits, the same for equal objects."""
    text = json.dumps(obj, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]
