"""Pure functions that build a MacroInstance's objects, as plain mappings, from its manifest."""

from macroserve.operator.k8s.kinds import (
    CERTIFICATE,
    CONFIG_MAP,
    DEPLOYMENT,
    NETWORK_POLICY,
    SERVICE,
    ClusterKinds,
    Kind,
    Object,
)
from macroserve.operator.render import head, ingress, instance, network, shared
from macroserve.operator.render.context import RenderContext


def children(context: RenderContext, kinds: ClusterKinds) -> list[tuple[Kind, Object]]:
    """Return the objects independent of the number of instances, in creation order, without
    Secrets.
    """
    issued = [(CERTIFICATE, shared.certificate(context))] if context.tls.issued else []
    return [
        (CONFIG_MAP, shared.config_map(context)),
        *issued,
        *((NETWORK_POLICY, policy) for policy in network.policies(context)),
        (SERVICE, head.service(context)),
        (SERVICE, instance.service(context)),
        (SERVICE, ingress.service(context)),
        (DEPLOYMENT, head.deployment(context)),
        (DEPLOYMENT, ingress.deployment(context)),
        (kinds.budget, ingress.disruption_budget(context)),
        *((kinds.autoscaler, found) for found in ingress.autoscalers(context)),
    ]
