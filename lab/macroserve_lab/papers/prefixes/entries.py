"""The rules of routing that are compared.

All but the last entry serve with stock vLLM's schedule, so that only the routing differs.
"""

from macroserve.core.hybrid_cache import keeping_hidden
from macroserve.core.request import Slo
from macroserve.core.strategies import STRATEGIES
from macroserve.sim.rival_routing import Routing
from macroserve.sim.scenario import ClusterSpec, Scenario

OWN, UNIFIED = "vllm, own routing", "unified"

ENTRIES = {
    **{routing.value: ("vllm", routing) for routing in Routing if routing is not Routing.OWN},
    OWN: ("vllm", Routing.OWN),
    UNIFIED: ("unified", Routing.OWN),
}
"""Strategy and routing by the name of an entry."""


def scenario(cluster: ClusterSpec, slo: Slo, entry: str) -> Scenario:
    """Return a cluster with the strategy and the routing of an entry. No instance keeps hidden
    states, beside which prompts would share no blocks."""
    name, routing = ENTRIES[entry]
    return Scenario(cluster, keeping_hidden(STRATEGIES[name], on=False), slo, routing=routing)
