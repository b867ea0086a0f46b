"""The pods of a MacroInstance, as the operator renders them."""

from typing import Any

from support.fake_deployment import resource

from macroserve.api.manifest import parse
from macroserve.core.status import Pool
from macroserve.operator.render import head, ingress, instance
from macroserve.operator.render.context import RenderContext
from macroserve.operator.render.served_tls import PLAIN, ServedTls


def context(
    image: str = "registry.local/engine:1", tls: ServedTls = PLAIN, **spec: Any
) -> RenderContext:
    document = resource(**spec)
    return RenderContext(
        parse(document), document, "team", "uid-llama", image, "IfNotPresent", tls=tls
    )


def pods(of: RenderContext) -> dict[str, dict[str, Any]]:
    """Return the metadata and spec of each component's pod."""
    return {
        "head": head.deployment(of)["spec"]["template"],
        "ingress": ingress.deployment(of)["spec"]["template"],
        "instance": instance.instance_pod(of, "instance-3", "cell-1", Pool.HP),
    }


def container(pod: dict[str, Any]) -> dict[str, Any]:
    return pod["spec"]["containers"][0]
