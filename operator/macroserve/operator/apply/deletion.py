"""Deletion of a MacroInstance in two phases: its accepted requests end, then its objects go.

The ingress is deleted first and has time to finish the accepted requests. Then the other pods are
deleted; Kubernetes deletes the remaining objects with the MacroInstance, their owner.
"""

from datetime import timedelta

from macroserve.operator.k8s import names
from macroserve.operator.k8s.cache import Store
from macroserve.operator.k8s.client import Api, ApiError
from macroserve.operator.k8s.kinds import (
    DEPLOYMENT,
    MACROINSTANCE,
    POD,
    Object,
    is_deleting,
    of_component,
)
from macroserve.operator.k8s.names import Key
from macroserve.operator.render import ingress

PATIENCE = timedelta(seconds=ingress.GRACE_S + 30)
"""Wait for the ingress after which the rest goes as well; a lost node would block it forever."""


async def finalize(api: Api, store: Store, resource: Object, waited: timedelta) -> bool:
    """Take one step of the deletion; return whether it is complete. Raise ApiError.

    waited: time since the first step, which asks the ingress to end.
    """
    if not has_finalizer(resource):
        return True
    key = Key.of(resource)
    pods = store.of(POD, key).values()
    await _delete(api, store, key, names.ingress(key.name))
    if of_component(pods, "ingress") and waited < PATIENCE:
        return False
    await _delete(api, store, key, names.head(key.name))
    for pod in of_component(pods, "instance"):
        if not is_deleting(pod):
            await api.delete(POD, key.namespace, pod["metadata"]["name"])
    await remove_finalizer(api, resource)
    return True


async def _delete(api: Api, store: Store, key: Key, deployment: str) -> None:
    found = store.of(DEPLOYMENT, key).get(deployment)
    if found is not None and not is_deleting(found):
        await api.delete(DEPLOYMENT, key.namespace, deployment)


async def add_finalizer(api: Api, resource: Object) -> bool:
    """Add the finalizer; return whether the resource still exists.

    Raises ApiError, a conflict if the resource has changed.
    """
    return await _set_finalizers(api, resource, [*_finalizers(resource), names.FINALIZER])


async def remove_finalizer(api: Api, resource: Object) -> None:
    """Remove the finalizer, if the resource still exists.

    Raises ApiError, a conflict if the resource has changed.
    """
    left = [finalizer for finalizer in _finalizers(resource) if finalizer != names.FINALIZER]
    if left != _finalizers(resource):
        await _set_finalizers(api, resource, left)


def has_finalizer(resource: Object) -> bool:
    return names.FINALIZER in _finalizers(resource)


def _finalizers(resource: Object) -> list[str]:
    return list(resource["metadata"].get("finalizers") or ())


async def _set_finalizers(api: Api, resource: Object, finalizers: list[str]) -> bool:
    """Write the finalizers; return whether the resource exists."""
    metadata = resource["metadata"]
    patch = {"resourceVersion": metadata["resourceVersion"], "finalizers": finalizers}
    try:
        await api.merge(MACROINSTANCE, metadata["namespace"], metadata["name"], {"metadata": patch})
    except ApiError as error:
        if not error.is_absence:
            raise
        return False
    return True
