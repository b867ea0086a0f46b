"""A request of a simulation, before its first token."""

from macroserve.core.request import Request, Slo
from macroserve.sim.device import SimRequest

SLO = Slo(ttft_s=2.0, tpot_s=0.1)


def record(name="r", arrival_s=0.0, num_output=11, slo=SLO):
    return SimRequest(Request(name, arrival_s, 10, 100, slo), num_output)
