"""Pure rules of the webhook, which decide on writes to a MacroInstance before they are stored.

They check what the CRD's schema and CEL rules cannot express, and repeat those rules for API
servers without CEL.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from macroserve.api.manifest import Manifest, ManifestError, parse
from macroserve.api.validation_errors import shown
from macroserve.operator.admission.pod_policy import (
    RESTRICTED,
    PodPolicy,
    cache_violations,
    violations,
)
from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import Object

MAX_NAME_CHARS = 53
"""``NAME-instances`` names a Service, so it must be a DNS label."""

GPU = "nvidia.com/gpu"

FIXED = ("model.source", "engine.type")
"""Fields of ``spec`` that never change: another model needs another MacroInstance. Other changes
reach the instances one after another, where needed by restarts."""


def review(
    operation: str,
    old: Object | None,
    new: Object | None,
    subresource: str,
    policy: PodPolicy = RESTRICTED,
) -> tuple[str, ...]:
    """Return one sentence per reason to refuse the write; none if it is accepted.

    operation: CREATE, UPDATE or DELETE.
    old, new: the MacroInstance before and after; for the subresource ``scale`` the current
        MacroInstance and the desired ``Scale``.
    policy: features that pod templates may use.
    """
    if new is None or operation == "DELETE" or subresource not in ("", "scale"):
        return ()
    if subresource == "scale":
        return tuple(_scale(old, new)) if old else ()
    if old and (new["metadata"].get("deletionTimestamp") or new.get("spec") == old.get("spec")):
        # Accept changes of labels and finalizers: an earlier version's objects must stay deletable.
        return ()
    try:
        admitted(new, policy)
    except ManifestError as error:
        return error.problems
    return tuple(_changed(old, new)) if old else ()


def admitted(resource: Object, policy: PodPolicy) -> Manifest:
    """Return the manifest of a MacroInstance whose pods may be created.

    Raises ManifestError with all problems.
    """
    manifest = manifest_of(resource)
    spec = manifest.spec
    problems = (
        *violations(spec.template or {}, policy, "spec.template"),
        *violations(spec.ingress.template or {}, policy, "spec.ingress.template"),
        *violations(spec.head.template or {}, policy, "spec.head.template"),
        *cache_violations(spec.model.cache, policy),
    )
    if problems:
        raise ManifestError(problems)
    return manifest


def manifest_of(resource: Object) -> Manifest:
    """Return the manifest of a MacroInstance as stored in the API server.

    Raises ManifestError with all problems, including what cannot run on Kubernetes.
    """
    manifest = parse({field: value for field, value in resource.items() if field != "status"})
    if problems := tuple(_impossible(manifest)):
        raise ManifestError(problems)
    return manifest


def _impossible(manifest: Manifest) -> Iterator[str]:
    name, engine = manifest.name, manifest.spec.engine
    if not re.fullmatch("[a-z].*", name) or len(name) > MAX_NAME_CHARS:
        yield (
            f"metadata.name is {shown(name)}, must begin with a letter and have at most "
            f"{MAX_NAME_CHARS} characters, because Services are named after it."
        )
    if manifest.spec.api.chat_template_file is not None:
        yield (
            f"spec.api.chatTemplateFile is {shown(manifest.spec.api.chat_template_file)}, must be "
            "left out, because pods cannot read your files: use spec.api.chatTemplateConfigMap."
        )
    gpus = _gpus(manifest.spec.template or {})
    needed = engine.tensor_parallel * engine.pipeline_parallel
    if engine.type == "vLLM" and gpus is not None and gpus < needed:
        stages = " times pipelineParallel" if engine.pipeline_parallel > 1 else ""
        yield (
            f"spec.engine.tensorParallel{stages} is {needed}, must be at most the {GPU} of the "
            f"container {names.CONTAINER} in spec.template, which is {gpus}."
        )


def _gpus(template: Object) -> int | None:
    """Return the number of GPUs of an instance, or None if the template has no number."""
    containers = (template.get("spec") or {}).get("containers") or ()
    for container in containers:
        if isinstance(container, Mapping) and container.get("name") == names.CONTAINER:
            limits = (container.get("resources") or {}).get("limits") or {}
            with suppress(ValueError):
                return int(limits.get(GPU, ""))
    return None


def _changed(old: Object, new: Object) -> Iterator[str]:
    for path in FIXED:
        before, after = _at(old, path), _at(new, path)
        if before != after:
            yield (
                f"spec.{path} cannot change from {shown(before)} to {shown(after)}: apply another "
                "MacroInstance and delete this one."
            )


def _at(resource: Object, path: str) -> object:
    value: Any = resource.get("spec", {})
    for field in path.split("."):
        value = value.get(field) if isinstance(value, Mapping) else None
    return value


def _scale(resource: Object, scale: Object) -> Iterator[str]:
    replicas = scale.get("spec", {}).get("replicas", 0)
    spec = resource["spec"]
    if replicas == spec["instances"]:
        return
    if scaling := spec.get("autoscaling"):
        bounds = f"{scaling['minInstances']} to {scaling['maxInstances']}"
        yield (
            f"spec.autoscaling scales {resource['metadata']['name']} within {bounds} instances: "
            "edit its bounds, or take spec.autoscaling out to scale by hand."
        )
    elif replicas < 1:
        yield (
            f"spec.replicas is {replicas}, must be a whole number of at least 1: delete the "
            "MacroInstance to stop it."
        )
