"""The macro strategy activates LP instances in turn, as EcoServe, over Ascendra's pools."""

from collections.abc import Sequence

from macroserve.core.routing.constraints import Demand
from macroserve.core.routing.decision import Choice
from macroserve.core.routing.policies.ascendra import split, to_high
from macroserve.core.routing.policies.ecoserve import ecoserve_route
from macroserve.core.status import InstanceView


def macro_route(candidates: Sequence[InstanceView], demand: Demand) -> Choice:
    """Route offloaded requests to HP, others to a ticket (Ascendra) whose instance satisfies the
    constraints, then by EcoServe's Algorithm 1 among the LP instances.

    A ticket tells that nothing waits for a prefill. EcoServe's Algorithm 2 checks beside it that
    the decodes have saved the time of one more, on HP instances as on any of the macro instance.
    """
    low, high = split(candidates)
    return to_high(high, demand, checked=True) or ecoserve_route(low, demand)
