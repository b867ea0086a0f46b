"""The pod of an instance: a bare one, so that the operator can choose which one to delete."""

import math
from typing import Any

from macroserve.core.engine_sizes import GIB, SMALL_CACHE_BYTES
from macroserve.core.status import Pool
from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import Object
from macroserve.operator.render import affinity, model_cache, pods, template
from macroserve.operator.render.bounds import bounded
from macroserve.operator.render.context import RenderContext

START_S = 3600
"""Time to fetch and load a model, seconds."""
GRACE_S = 300
EMULATED_RESOURCES = {"requests": {"cpu": "50m", "memory": "256Mi"}}
"""Resources of an Emulated engine, unless the template says otherwise."""
REAL_REQUEST_BYTES = 2 * GIB
"""Memory requested for a real engine; without a request, the limit would count as one. The actual
need, devices above all, depends on the model: a template's ``resources`` set it. The cache in host
memory is added."""
EMULATED_MEMORY_LIMIT = "4Gi"
MEMORY_PER_DEVICE_BYTES = 32 * GIB
"""Host memory for a worker process and its share of the weights while they are loaded. On a machine
without devices the KV cache is added."""
EMULATED_SIZES = pods.FolderSizes(tmp="4Gi", cache="10Gi", shm="1Gi")
REAL_SHM_BYTES = 16 * GIB
"""Memory that worker processes share, in addition to the cache in host memory."""


def instance_pod(
    context: RenderContext,
    instance: str,
    cell: str,
    pool: Pool,
    excluded_nodes: frozenset[str] = frozenset(),
) -> Object:
    """Return the pod of an instance, kept off `excluded_nodes`. These are not part of its revision:
    running pods stay when more nodes are avoided.
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
        "spec": affinity.excluding(rendered["spec"], excluded_nodes),
    }


def revision(context: RenderContext) -> str:
    """Return the revision of an instance's pod that is created now."""
    return context.revision(_rendered(context))


def _rendered(context: RenderContext) -> Object:
    """Return the pod without the fields that tell one instance from another."""
    emulated = context.manifest.spec.engine.type == "Emulated"
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
            # What vLLM says of its start: the cache's size, the graphs, the attention's kernels.
            "VLLM_LOGGING_LEVEL": {"value": "INFO"},
            "MACROSERVE_INSTANCE": pods.of_label(names.INSTANCE),
            "MACROSERVE_POOL": pods.of_label(names.POOL),
        },
    )
    pod["spec"]["restartPolicy"] = "Always"
    pod["spec"]["affinity"] = pods.on_other_nodes(names.selector(context.name, "instance"))
    model_cache.mount(context, pod["spec"])
    pod = model_cache.with_fetch(context, template.merged(pod, context.template))
    return bounded(pod, _memory_limit(context))


def _memory_limit(context: RenderContext) -> str:
    engine = context.manifest.spec.engine
    if engine.type == "Emulated":
        return EMULATED_MEMORY_LIMIT
    workers_bytes = MEMORY_PER_DEVICE_BYTES * engine.tensor_parallel * engine.pipeline_parallel
    caches_bytes = (engine.kv_cache_bytes or SMALL_CACHE_BYTES) + _host_cache_bytes(context)
    return f"{math.ceil((workers_bytes + caches_bytes) / 2**20)}Mi"


def _real_resources(context: RenderContext) -> Object:
    return {"requests": {"memory": _quantity(REAL_REQUEST_BYTES + _host_cache_bytes(context))}}


def _real_sizes(context: RenderContext) -> pods.FolderSizes:
    """Return the sizes of a real engine's folders. ``cache`` has the models that it downloads,
    unless a volume of the template takes its place."""
    shm = _quantity(REAL_SHM_BYTES + _host_cache_bytes(context))
    return pods.FolderSizes(tmp="20Gi", cache="500Gi", shm=shm)


def _host_cache_bytes(context: RenderContext) -> int:
    return context.manifest.spec.engine.host_cache_bytes or 0


def _quantity(num_bytes: int) -> str:
    whole, rest = divmod(num_bytes, GIB)
    return f"{math.ceil(num_bytes / 2**20)}Mi" if rest else f"{whole}Gi"


def service(context: RenderContext) -> Object:
    """Return a headless Service with the addresses of all instances, ready or not, so that a
    restarted part finds them.
    """
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

    The budget is a minimum of available pods: the API server takes a maximum of unavailable pods
    from ``spec.instances``, which autoscaling does not change.
    """
    return {
        "metadata": context.metadata(names.instances_service(context.name), "instance"),
        "spec": {
            "minAvailable": max(0, num_instances - 1),
            "selector": {"matchLabels": names.selector(context.name, "instance")},
        },
    }
