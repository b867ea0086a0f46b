"""Objects of a MacroInstance, created and kept as desired."""

from dataclasses import dataclass

import msgspec

from macroserve.operator import render
from macroserve.operator.admission.spec import admitted
from macroserve.operator.k8s import names
from macroserve.operator.k8s.cache import Store, fingerprint
from macroserve.operator.k8s.client import Api, ApiError
from macroserve.operator.k8s.kinds import (
    DEPLOYMENT,
    ClusterKinds,
    Kind,
    Object,
    annotations,
    is_owned,
)
from macroserve.operator.k8s.names import Key
from macroserve.operator.observe.observation import Problem
from macroserve.operator.observe.problems import refusal
from macroserve.operator.options import OperatorOptions
from macroserve.operator.render import instance
from macroserve.operator.render.context import RenderContext, digest


@dataclass(frozen=True, slots=True)
class _OwnedObject:
    kind: Kind
    name: str
    applied: str
    """Value of the annotation APPLIED once the object is as desired."""
    document: bytes
    """The object as JSON, which takes a fraction of the memory of nested mappings."""


class OwnedObjects:
    """The objects of one generation; `ensure` calls the API server only if one differs.

    Changes by others are detected by an object's fingerprint and reverted; a new operator accepts
    the objects as it finds them.
    """

    def __init__(self, context: RenderContext, kinds: ClusterKinds) -> None:
        self._context = context
        self._kinds = kinds
        self._fixed = tuple(_child(*made) for made in render.children(context, kinds))
        self._fingerprints: dict[tuple[Kind, str], int] = {}

    async def ensure(
        self, api: Api, store: Store, key: Key, num_instances: int
    ) -> tuple[Problem, ...]:
        """Apply the objects that differ; return why some could not be created.

        Raises ApiError if a retry may help.

        num_instances: desired number of instances.
        """
        problems = []
        budget = instance.disruption_budget(self._context, num_instances)
        for child in (*self._fixed, _child(self._kinds.budget, budget)):
            found = store.of(child.kind, key).get(child.name)
            if found is not None and self._is_right(child, found):
                continue
            if found is None:
                found = await api.get(child.kind, key.namespace, child.name)
            what = f"{child.kind.name} {child.name}"
            if found is not None and not is_owned(found, self._context.uid):
                message = f"{what} already exists and belongs to another object."
                problems.append(Problem("NameTaken", message))
                continue
            try:
                applied = await api.apply(child.kind, msgspec.json.decode(child.document))
            except ApiError as error:
                problems.append(refused(what, error))
            else:
                self._fingerprints[child.kind, child.name] = fingerprint(applied)
        await self._scale_ingress(api, store, key)
        return tuple(problems)

    async def _scale_ingress(self, api: Api, store: Store, key: Key) -> None:
        """Set a fixed number of ingress replicas, or leave it to the autoscaler.

        The number is no applied field, because to stop applying one would reset it.
        """
        name = names.ingress(key.name)
        least, most = self._context.manifest.spec.ingress.replica_bounds
        if least < most:
            return
        autoscaler = store.of(self._kinds.autoscaler, key).get(name)
        if autoscaler is not None and is_owned(autoscaler, self._context.uid):
            await api.delete(self._kinds.autoscaler, key.namespace, name)
        found = store.of(DEPLOYMENT, key).get(name)
        if found is None or not is_owned(found, self._context.uid):
            return
        if found["spec"].get("replicas") != least:
            await api.merge(DEPLOYMENT, key.namespace, name, {"spec": {"replicas": least}})

    def _is_right(self, child: _OwnedObject, found: Object) -> bool:
        if annotations(found).get(names.APPLIED) != child.applied:
            return False
        present = found["fingerprint"]
        return self._fingerprints.setdefault((child.kind, child.name), present) == present


class DesiredObjects:
    """Objects that one generation of a MacroInstance should have.

    Raises ManifestError if the spec is invalid or the policy refuses its template.

    """

    def __init__(self, resource: Object, options: OperatorOptions, kinds: ClusterKinds) -> None:
        metadata = resource["metadata"]
        self.generation: int = metadata["generation"]
        self.render_context = RenderContext(
            manifest=admitted(resource, options.pod_policy),
            document=resource,
            namespace=metadata["namespace"],
            uid=metadata["uid"],
            image=options.engine_image,
            image_pull_policy=options.engine_image_pull_policy,
            operator_namespace=options.namespace,
            network=options.served_network,
            tls=options.served_tls,
        )
        self.manifest = self.render_context.manifest
        self.owned = OwnedObjects(self.render_context, kinds)
        self.revision = instance.revision(self.render_context)


def refused(what: str, error: ApiError) -> Problem:
    """Return the problem of an object that the API server refused; raise transient errors again."""
    if error.is_passing:
        raise error
    return refusal(what, {"reason": error.reason, "message": str(error)})


def _child(kind: Kind, obj: Object) -> _OwnedObject:
    applied = digest(obj)
    obj["metadata"].setdefault("annotations", {})[names.APPLIED] = applied
    return _OwnedObject(kind, obj["metadata"]["name"], applied, msgspec.json.encode(obj))
