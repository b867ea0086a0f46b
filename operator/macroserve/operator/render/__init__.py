"""The objects of a MacroInstance, from its manifest alone: pure builders of plain mappings."""

from macroserve.operator.k8s.kinds import (
    CERTIFICATE,
    CONFIG_MAP,
    DEPLOYMENT,
    NETWORK_POLICY,
    SERVICE,
    Kind,
)
from macroserve.operator.render import head, ingress, instance, network, shared
from macroserve.operator.render.blueprint import Blueprint, Object


def children(blueprint: Blueprint, budget: Kind) -> list[tuple[Kind, Object]]:
    """All that is the same for any number of instances but the Secrets, in the order in which to
    make them.

    budget: the kind of disruption budget that the cluster has.
    """
    issued = [(CERTIFICATE, shared.certificate(blueprint))] if blueprint.tls.issued else []
    return [
        (CONFIG_MAP, shared.config_map(blueprint)),
        *issued,
        *((NETWORK_POLICY, policy) for policy in network.policies(blueprint)),
        (SERVICE, head.service(blueprint)),
        (SERVICE, instance.service(blueprint)),
        (SERVICE, ingress.service(blueprint)),
        (DEPLOYMENT, head.deployment(blueprint)),
        (DEPLOYMENT, ingress.deployment(blueprint)),
        (budget, ingress.disruption_budget(blueprint)),
    ]
