"""Prefill and decode on instances of their own, as DistServe and MoonCake have it."""

from collections.abc import Sequence

from macroserve.core.routing.constraints import Demand
from macroserve.core.routing.decision import Choice
from macroserve.core.routing.policies.baselines import least_load_route
from macroserve.core.status import InstanceView, Pool


def disaggregated_route(candidates: Sequence[InstanceView], demand: Demand) -> Choice:
    """The least loaded HP instance for a prompt, the least loaded LP instance for its decodes.

    All stand in where there are none of the kind.
    """
    pool = Pool.LP if demand.prefilled else Pool.HP
    return least_load_route([v for v in candidates if v.pool is pool] or candidates, demand)
