"""An instance: a bare pod of its own, named after it, so that the one to end can be chosen."""

from typing import Any

from macroserve.core.views import Pool
from macroserve.operator import names
from macroserve.operator.resources import pods, template
from macroserve.operator.resources.blueprint import Blueprint, Object

START_S = 3600
"""To fetch and load a model."""
GRACE_S = 300
EMULATED_RESOURCES = {"requests": {"cpu": "50m", "memory": "256Mi"}}
"""Of an Emulated engine, unless the template says otherwise. What a real one needs (devices
above all) only the person who chose the model knows: a template's ``resources`` say it."""


def pod(blueprint: Blueprint, instance: str, cell: str, pool: Pool) -> Object:
    rendered = _rendered(blueprint)
    metadata: dict[str, Any] = rendered["metadata"]
    own = {names.INSTANCE: instance, names.CELL: cell, names.POOL: pool.value}
    annotations = metadata.get("annotations", {}) | {names.REVISION: revision(blueprint)}
    return {
        "metadata": blueprint.metadata(
            names.pod(blueprint.name, instance),
            "instance",
            labels=metadata["labels"] | own,
            annotations=annotations,
        ),
        "spec": rendered["spec"],
    }


def revision(blueprint: Blueprint) -> str:
    """What an instance's pod carries if it is made now."""
    return blueprint.revision(_rendered(blueprint))


def _rendered(blueprint: Blueprint) -> Object:
    """Without what tells one instance from another."""
    emulated = blueprint.manifest.spec.engine.type == "Emulated"
    pod = pods.pod(
        blueprint,
        "instance",
        args=[],
        ports={"http": names.INSTANCE_PORT},
        readiness="/health",
        resources=EMULATED_RESOURCES if emulated else {},
        start_s=START_S,
        grace_s=GRACE_S,
        env={
            "MACROSERVE_INSTANCE": pods.of_label(names.INSTANCE),
            "MACROSERVE_POOL": pods.of_label(names.POOL),
        },
    )
    pod["spec"]["restartPolicy"] = "Always"
    pod["spec"]["affinity"] = pods.on_other_nodes(names.selector(blueprint.name, "instance"))
    return template.merged(pod, blueprint.template)


def service(blueprint: Blueprint) -> Object:
    """A DNS name with the addresses of all instances, ready or not: who restarts finds them."""
    return {
        "metadata": blueprint.metadata(names.instances_service(blueprint.name), "instance"),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector(blueprint.name, "instance"),
            "ports": [pods.service_port("http", names.INSTANCE_PORT)],
        },
    }


def disruption_budget(blueprint: Blueprint, num_instances: int) -> Object:
    """One of those wished for may be missing. Said as a number of pods: what a maximum of missing
    ones is taken from is ``spec.instances``, which autoscaling does not change."""
    return {
        "metadata": blueprint.metadata(names.instances_service(blueprint.name), "instance"),
        "spec": {
            "minAvailable": max(0, num_instances - 1),
            "selector": {"matchLabels": names.selector(blueprint.name, "instance")},
        },
    }
