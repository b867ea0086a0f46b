"""Merge of a user's pod template into the operator's pod, like a strategic merge patch."""

from collections.abc import Mapping
from typing import Any

from macroserve.operator.k8s import names
from macroserve.operator.render.confinement import SIDECAR_SECURITY

_KEYS = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "imagePullSecrets": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "protocol"),
    "tolerations": ("key", "effect"),
}
"""Lists whose items are identified by fields. Other lists are replaced by the template's."""
_MERGED = ("containers", "initContainers")
"""Lists whose items are merged. In others the template's item replaces its namesake, because, for
example, a volume must not have two sources."""

_SHARED_POD_PARTS = ("imagePullSecrets", "tolerations")
_FRONTEND_POD_PARTS = (*_SHARED_POD_PARTS, "volumes")
_FRONTEND_CONTAINER_PARTS = ("env", "envFrom", "volumeMounts")


def merged(pod: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a pod and a template, both with ``metadata`` and ``spec``.

    A null in the template removes a field. The operator's labels and annotations win.
    """
    result = _merged(pod, {part: template[part] for part in ("spec",) if part in template})
    given = template.get("metadata") or {}
    metadata = dict(pod.get("metadata", {}))
    if isinstance(result.get("spec"), Mapping):
        result["spec"] = _with_confined_sidecars(result["spec"])
    for part in ("labels", "annotations"):
        if own := {**(given.get(part) or {}), **metadata.get(part, {})}:
            metadata[part] = own
    return {**result, "metadata": metadata}


def _with_confined_sidecars(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Confine the containers that the template adds, where it sets nothing else."""
    result = dict(spec)
    for field in _MERGED:
        containers = result.get(field)
        if isinstance(containers, list):
            result[field] = [
                _confined(each) if isinstance(each, Mapping) else each for each in containers
            ]
    return result


def _confined(container: Mapping[str, Any]) -> dict[str, Any]:
    if container.get("name") == names.CONTAINER:
        return dict(container)
    own = container.get("securityContext") or {}
    if not isinstance(own, Mapping):
        return dict(container)
    return {**container, "securityContext": _merged(SIDECAR_SECURITY, own)}


def for_head(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an instances' template that applies to the head: placement, no devices."""
    return {"spec": _only(template.get("spec") or {}, _SHARED_POD_PARTS)}


def for_ingress(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part that applies to an ingress: the head's, and access to the model."""
    spec = template.get("spec") or {}
    part = _only(spec, _FRONTEND_POD_PARTS)
    for container in spec.get("containers") or ():
        if container.get("name") == names.CONTAINER:
            taken = _only(container, _FRONTEND_CONTAINER_PARTS)
            part["containers"] = [{"name": names.CONTAINER, **taken}]
    return {"spec": part}


def without_devices(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template without the devices of the engine's container: its extended resources,
    such as ``nvidia.com/gpu``, and claims."""
    spec = template.get("spec") or {}
    containers = [
        {**each, "resources": _without_devices(each.get("resources") or {})}
        if isinstance(each, Mapping) and each.get("name") == names.CONTAINER
        else each
        for each in spec.get("containers") or ()
    ]
    if not containers:
        return dict(template)
    return {**template, "spec": {**spec, "containers": containers}}


def _without_devices(resources: Mapping[str, Any]) -> dict[str, Any]:
    return {
        part: {name: each for name, each in given.items() if "/" not in name}
        if isinstance(given, Mapping)
        else given
        for part, given in resources.items()
        if part != "claims"
    }


def _only(mapping: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: mapping[key] for key in keys if key in mapping}


def _merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in patch.items():
        there = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            result[key] = _merged(there if isinstance(there, Mapping) else {}, value)
        elif key in _KEYS and isinstance(value, list) and isinstance(there, list):
            result[key] = _merged_list(there, value, _KEYS[key], merges=key in _MERGED)
        else:
            result[key] = value
    return result


def _merged_list(
    base: list[Any], patch: list[Any], keys: tuple[str, ...], merges: bool
) -> list[dict[str, Any]]:
    """Return the base's items in order, then the new ones.

    New items may share a name: taints with one key and two values.
    """
    result = list(base)
    for item in patch:
        same = [i for i, there in enumerate(base) if _is_namesake(there, item, keys)]
        if same:
            result[same[0]] = _merged(result[same[0]], item) if merges else item
        else:
            result.append(item)
    return result


def _is_namesake(there: Mapping[str, Any], item: Mapping[str, Any], keys: tuple[str, ...]) -> bool:
    """Return whether the items have the same keys; later keys missing in ``item`` match."""
    if not isinstance(item, Mapping):
        return False
    first, *others = keys
    name = item.get(first)
    is_named = name is not None and name == there.get(first)
    return is_named and all(item.get(key) in (None, there.get(key)) for key in others)
