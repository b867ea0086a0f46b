"""The head: the pod in which the cell schedulers run, and the way to it."""

from macroserve.operator.k8s import names
from macroserve.operator.render import pods, template
from macroserve.operator.render.blueprint import Blueprint, Object
from macroserve.operator.render.bounds import bounded

CELLS = names.CELL_PORTS
START_S = 300
GRACE_S = 30
RESOURCES = {"requests": {"cpu": "200m", "memory": "1Gi"}}
MEMORY_LIMIT = "8Gi"
"""Ray's own processes take about 1 GiB, and each cell scheduler a process of its own."""
SIZES = pods.FolderSizes(tmp="4Gi", cache="4Gi", shm="1Gi")


def deployment(blueprint: Blueprint) -> Object:
    """Of one pod, which ends before the next one begins: two heads would give two verdicts."""
    name = names.head(blueprint.name)
    pod = pods.pod(
        blueprint,
        "head",
        args=["--host", "$(POD_IP)", "--cell-ports", f"{CELLS.start}-{CELLS.stop - 1}"],
        ports={"control": names.HEAD_PORT},
        readiness="/ready",
        resources=RESOURCES,
        start_s=START_S,
        grace_s=GRACE_S,
        sizes=SIZES,
    )
    pod = template.merged(pod, template.for_head(blueprint.template))
    pod = bounded(pod, MEMORY_LIMIT)
    revision = blueprint.revision(pod)
    pod["metadata"]["annotations"] = {names.REVISION: revision}
    return {
        "metadata": blueprint.metadata(name, "head", annotations={names.REVISION: revision}),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": names.selector(blueprint.name, "head")},
            "template": pod,
        },
    }


def service(blueprint: Blueprint) -> Object:
    return {
        "metadata": blueprint.metadata(names.head(blueprint.name), "head"),
        "spec": {
            "selector": names.selector(blueprint.name, "head"),
            "ports": [pods.service_port("control", names.HEAD_PORT)],
        },
    }
