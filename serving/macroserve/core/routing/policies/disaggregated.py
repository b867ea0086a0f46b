"""DistServe and MoonCake prefill and decode on separate instances."""

from collections.abc import Sequence

from macroserve.core.routing.constraints import Demand
from macroserve.core.routing.decision import Choice
from macroserve.core.routing.policies.baselines import least_load_route
from macroserve.core.status import InstanceView, Pool


def disaggregated_route(candidates: Sequence[InstanceView], demand: Demand) -> Choice:
    """Route a prompt to the least loaded HP instance, and its decodes to the least loaded LP
    instance.

    Without an instance of that kind, all instances take the role.
    """
    pool = Pool.LP if demand.prefilled else Pool.HP
    return least_load_route([v for v in candidates if v.pool is pool] or candidates, demand)
