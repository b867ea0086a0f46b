"""The pod in which the cell schedulers run, and its Service."""

from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import Object
from macroserve.operator.render import pods, template
from macroserve.operator.render.bounds import bounded
from macroserve.operator.render.context import RenderContext

CELLS = names.CELL_PORTS
START_S = 300
GRACE_S = 30
RESOURCES = {"requests": {"cpu": "200m", "memory": "1Gi"}}
MEMORY_LIMIT = "8Gi"
"""About 1 GiB for Ray's own processes; the rest for one process per cell scheduler."""
SIZES = pods.FolderSizes(tmp="4Gi", cache="4Gi", shm="1Gi")


def deployment(context: RenderContext) -> Object:
    """Return a Deployment of one pod, which ends before its successor starts.

    Two heads would make conflicting decisions.
    """
    name = names.head(context.name)
    pod = pods.base_pod(
        context,
        "head",
        args=["--host", "$(POD_IP)", "--cell-ports", f"{CELLS.start}-{CELLS.stop - 1}"],
        ports={"control": names.HEAD_PORT},
        readiness="/ready",
        resources=RESOURCES,
        start_s=START_S,
        grace_s=GRACE_S,
        sizes=SIZES,
    )
    pod = template.merged(pod, template.for_head(context.template))
    pod = template.merged(pod, context.manifest.spec.head.template or {})
    pod = bounded(pod, MEMORY_LIMIT)
    revision = context.revision(pod)
    pod["metadata"]["annotations"] = {names.REVISION: revision}
    return {
        "metadata": context.metadata(name, "head", annotations={names.REVISION: revision}),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": names.selector(context.name, "head")},
            "template": pod,
        },
    }


def service(context: RenderContext) -> Object:
    return {
        "metadata": context.metadata(names.head(context.name), "head"),
        "spec": {
            "selector": names.selector(context.name, "head"),
            "ports": [pods.service_port("control", names.HEAD_PORT)],
        },
    }
