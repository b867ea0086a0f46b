"""Ingresses for the clients' requests: equal replicas, on different nodes if possible."""

from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import DEPLOYMENT, Object
from macroserve.operator.render import model_cache, pods, template
from macroserve.operator.render.bounds import bounded
from macroserve.operator.render.context import RenderContext

START_S = 600
"""Includes fetching the model's tokenizer."""
GRACE_S = 300
RESOURCES = {"requests": {"cpu": "200m", "memory": "512Mi"}}
MEMORY_LIMIT = "8Gi"
"""About 1 GiB for the frontend; the rest for requests and the processes that check them."""
CPU_PER_REPLICA = "700m"
"""Average use above which an autoscaler adds replicas; one that serves alone can use a core."""
SIZES = pods.FolderSizes(tmp="4Gi", cache="10Gi", shm="1Gi")


def deployment(context: RenderContext) -> Object:
    """Return the Deployment, without its number of replicas, which an autoscaler may set.

    A rollout removes a replica only after its replacement is ready.
    """
    name = names.ingress(context.name)
    selector = names.selector(context.name, "ingress")
    pod = pods.base_pod(
        context,
        "ingress",
        args=["--head", f"{context.tls.scheme}://{names.head(context.name)}:{names.HEAD_PORT}"],
        # Probe the private port, because clients could exhaust the connections of the public one.
        ports={"private": names.PRIVATE_PORT, "http": names.PUBLIC_PORT},
        readiness="/ready",
        resources=RESOURCES,
        start_s=START_S,
        grace_s=GRACE_S,
        sizes=SIZES,
    )
    if secret := context.manifest.spec.ingress.api_keys_secret:
        keys = {"secret": {"secretName": secret, "defaultMode": 0o440}}
        pod["spec"]["volumes"].append({"name": "api-keys", **keys})
        pod["spec"]["containers"][0]["volumeMounts"].append(
            {"name": "api-keys", "mountPath": pods.API_KEYS_FOLDER, "readOnly": True}
        )
    if template_map := context.manifest.spec.api.chat_template_config_map:
        items = [{"key": template_map.key, "path": template_map.key}]
        source = {"configMap": {"name": template_map.name, "items": items}}
        pod["spec"]["volumes"].append({"name": "chat-template", **source})
        pod["spec"]["containers"][0]["volumeMounts"].append(
            {"name": "chat-template", "mountPath": pods.CHAT_TEMPLATE_FOLDER, "readOnly": True}
        )
    pod["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector},
        }
    ]
    if (cache := context.manifest.spec.model.cache) and not cache.writable:
        # A read-only cache may be the only place with the tokenizer; a writable one may be
        # node-local.
        model_cache.mount(context, pod["spec"])
    pod = template.merged(pod, template.for_ingress(context.template))
    pod = template.merged(pod, context.manifest.spec.ingress.template or {})
    pod = bounded(pod, MEMORY_LIMIT)
    revision = context.revision(pod, serves_api=True)
    pod["metadata"]["annotations"] = {names.REVISION: revision}
    return {
        "metadata": context.metadata(name, "ingress", annotations={names.REVISION: revision}),
        "spec": {
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
            },
            "selector": {"matchLabels": selector},
            "template": pod,
        },
    }


def service(context: RenderContext) -> Object:
    """Return the Service that ``status.endpoint`` names."""
    return {
        "metadata": context.metadata(context.name, "ingress"),
        "spec": {
            "selector": names.selector(context.name, "ingress"),
            "ports": [pods.service_port("http", names.PUBLIC_PORT)],
        },
    }


def disruption_budget(context: RenderContext) -> Object:
    return {
        "metadata": context.metadata(names.ingress(context.name), "ingress"),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": names.selector(context.name, "ingress")},
        },
    }


def autoscalers(context: RenderContext) -> list[Object]:
    """Return the HorizontalPodAutoscaler; none for a fixed number of replicas."""
    least, most = context.manifest.spec.ingress.replica_bounds
    if least == most:
        return []
    name = names.ingress(context.name)
    target = {"type": "AverageValue", "averageValue": CPU_PER_REPLICA}
    return [
        {
            "metadata": context.metadata(name, "ingress"),
            "spec": {
                "scaleTargetRef": {
                    "apiVersion": DEPLOYMENT.api_version,
                    "kind": DEPLOYMENT.name,
                    "name": name,
                },
                "minReplicas": least,
                "maxReplicas": most,
                "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
            },
        }
    ]
