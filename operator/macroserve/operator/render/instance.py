"""Pods of instances, without a controller, so that the operator chooses which one to delete."""

import math
from collections.abc import Collection, Mapping
from typing import Any

from macroserve.core.engine_sizes import GIB, SMALL_CACHE_BYTES
from macroserve.core.status import Pool
from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import Object
from macroserve.operator.render import model_cache, pods, template
from macroserve.operator.render.bounds import bounded
from macroserve.operator.render.context import RenderContext

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

START_S = 3600
"""Time to fetch and load a model, seconds."""
GRACE_S = 300
EMULATED_RESOURCES = {"requests": {"cpu": "50m", "memory": "256Mi"}}
"""Resources of an Emulated engine, unless the template sets them."""
REAL_REQUEST_BYTES = 2 * GIB
"""Memory request of a real engine, without which the limit would be the request; the cache in host
memory is added. A template's ``resources`` set the model's actual needs, including devices."""
EMULATED_MEMORY_LIMIT = "4Gi"
MEMORY_PER_DEVICE_BYTES = 32 * GIB
"""Host memory for a worker process and its share of the weights while they load. On machines
without devices the KV cache is added."""
EMULATED_SIZES = pods.FolderSizes(tmp="4Gi", cache="10Gi", shm="1Gi")
REAL_SHM_BYTES = 16 * GIB
"""Memory shared by worker processes, in addition to the cache in host memory."""


def instance_pod(
    context: RenderContext,
    instance: str,
    cell: str,
    pool: Pool,
    excluded_nodes: frozenset[str] = frozenset(),
) -> Object:
    """Return the pod of an instance, kept off `excluded_nodes`.

    The nodes are not part of its revision: running pods stay when more nodes are avoided.
    """
    rendered = _rendered(context)
    metadata: dict[str, Any] = rendered["metadata"]
    own = {names.INSTANCE: instance, names.CELL: cell, names.POOL: pool.value}
    annotations = metadata.get("annotations", {}) | {
        names.REVISION: context.revision(rendered),
        names.EXCLUDED_NODES: ",".join(sorted(excluded_nodes)),
    }
    return {
        "metadata": context.metadata(
            names.pod_name(context.name, instance),
            "instance",
            labels=metadata["labels"] | own,
            annotations=annotations,
        ),
        "spec": excluding(rendered["spec"], excluded_nodes),
    }


def excluding(spec: Mapping[str, Any], nodes: Collection[str]) -> dict[str, Any]:
    """Return a pod's spec with an affinity that excludes the nodes in each of its terms.

    It uses the nodes' names, because their label ``kubernetes.io/hostname`` is the kubelet's host
    name, which on some clouds differs from a pod's ``nodeName``.
    """
    if not nodes:
        return dict(spec)
    # API servers accept one name per requirement; all requirements hold.
    off = [
        {"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in sorted(nodes)
    ]
    affinity = spec.get("affinity") or {}
    of_nodes = affinity.get("nodeAffinity") or {}
    required = of_nodes.get(_REQUIRED)
    if required is None:
        required = {"nodeSelectorTerms": [{"matchFields": off}]}
    else:
        terms = [_with(term, off) for term in required.get("nodeSelectorTerms") or ()]
        required = {**required, "nodeSelectorTerms": terms}
    return {
        **spec,
        "affinity": {**affinity, "nodeAffinity": {**of_nodes, _REQUIRED: required}},
    }


def _with(term: Mapping[str, Any], off: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a term with the exclusion; an empty term, which matches no node, stays empty."""
    fields = term.get("matchFields") or []
    if not fields and not term.get("matchExpressions"):
        return dict(term)
    return {**term, "matchFields": [*fields, *off]}


def revision(context: RenderContext) -> str:
    """Return the revision of instance pods that are created now."""
    return context.revision(_rendered(context))


def _rendered(context: RenderContext) -> Object:
    """Return the pod without the fields that differ between instances."""
    engine = context.manifest.spec.engine
    emulated = engine.type == "Emulated"
    pod = pods.base_pod(
        context,
        "instance",
        args=[],
        ports={"control": names.CONTROL_PORT, "http": names.INSTANCE_PORT},
        readiness="/health",
        resources=EMULATED_RESOURCES if emulated else _real_resources(context),
        start_s=START_S,
        grace_s=GRACE_S,
        sizes=EMULATED_SIZES if emulated else _real_sizes(context),
        env={
            # vLLM logs facts of its start: the cache's size, graphs, attention kernels.
            "VLLM_LOGGING_LEVEL": {"value": "INFO"},
            "MACROSERVE_INSTANCE": pods.of_label(names.INSTANCE),
            "MACROSERVE_POOL": pods.of_label(names.POOL),
        },
    )
    pod["spec"]["restartPolicy"] = "Always"
    pod["spec"]["affinity"] = pods.on_other_nodes(names.selector(context.name, "instance"))
    model_cache.mount(context, pod["spec"])
    own = template.without_devices(context.template) if engine.rehearse else context.template
    pod = model_cache.with_fetch(context, template.merged(pod, own))
    return bounded(pod, _memory_limit(context))


def _memory_limit(context: RenderContext) -> str:
    engine = context.manifest.spec.engine
    if engine.type == "Emulated" or engine.rehearse:
        return EMULATED_MEMORY_LIMIT
    workers_bytes = MEMORY_PER_DEVICE_BYTES * engine.tensor_parallel * engine.pipeline_parallel
    caches_bytes = (engine.kv_cache_bytes or SMALL_CACHE_BYTES) + _host_cache_bytes(context)
    return f"{math.ceil((workers_bytes + caches_bytes) / 2**20)}Mi"


def _real_resources(context: RenderContext) -> Object:
    return {"requests": {"memory": _quantity(REAL_REQUEST_BYTES + _host_cache_bytes(context))}}


def _real_sizes(context: RenderContext) -> pods.FolderSizes:
    """Return the folder sizes of a real engine; ``cache`` is for downloaded models."""
    shm = _quantity(REAL_SHM_BYTES + _host_cache_bytes(context))
    return pods.FolderSizes(tmp="20Gi", cache="500Gi", shm=shm)


def _host_cache_bytes(context: RenderContext) -> int:
    return context.manifest.spec.engine.host_cache_bytes or 0


def _quantity(num_bytes: int) -> str:
    whole, rest = divmod(num_bytes, GIB)
    return f"{math.ceil(num_bytes / 2**20)}Mi" if rest else f"{whole}Gi"


def service(context: RenderContext) -> Object:
    """Return a headless Service of all instances; restarted components also find unready ones."""
    return {
        "metadata": context.metadata(names.instances_service(context.name), "instance"),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector(context.name, "instance"),
            "ports": [pods.service_port("control", names.CONTROL_PORT)],
        },
    }


def disruption_budget(context: RenderContext, num_instances: int) -> Object:
    """Return a PodDisruptionBudget under which at most one of the desired instances is missing.

    It is a minimum of available pods, because the API server derives a maximum of unavailable pods
    from ``spec.instances``, which autoscaling does not change.
    """
    return {
        "metadata": context.metadata(names.instances_service(context.name), "instance"),
        "spec": {
            "minAvailable": max(0, num_instances - 1),
            "selector": {"matchLabels": names.selector(context.name, "instance")},
        },
    }
