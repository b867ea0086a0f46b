"""The requests to simulate, from the options that name a load."""

from collections.abc import Mapping
from math import inf
from typing import Any, NamedTuple

from macroserve.cli.load.options import given_load, parse_duration
from macroserve.cli.load.workload import Bounds, TraceLoad, plan
from macroserve.sim.arrivals import Arrival


class Requests(NamedTuple):
    """num_before: so many of the first arrivals do not count. num_skipped: bad rows of a trace."""

    arrivals: list[Arrival]
    num_before: int
    num_skipped: int

    @property
    def duration_s(self) -> float:
        return self.arrivals[-1].at_s - self.arrivals[self.num_before].at_s


def requests(given: Mapping[str, Any], default_duration: str, warm_up_s: float) -> Requests:
    """given: a command's parameters by name, those of ``cli.load.options`` among them.

    A trace is replayed whole unless ``duration`` says otherwise; synthetic requests of
    ``warm_up_s`` come before those that count. Raises ValueError for options that contradict each
    other, bad rows and no requests.
    """
    load, duration = given_load(given), given["duration"]
    is_trace = isinstance(load, TraceLoad)
    before_s, duration_s = (0.0 if is_trace else warm_up_s), inf
    if duration or not is_trace:
        duration_s = parse_duration("--duration", duration or default_duration) + before_s
    bounds = Bounds(
        duration_s=duration_s,
        length_scale=given["length_scale"],
        max_prompt_tokens=given["max_prompt_tokens"],
        max_output_tokens=given["max_output_tokens"],
    )
    arrivals = [
        Arrival(each.arrival_s, each.num_prompt_tokens, each.num_output_tokens)
        for each in plan(load, bounds, given["seed"])
    ]
    num_before = sum(arrival.at_s < before_s for arrival in arrivals)
    if num_before == len(arrivals):
        raise ValueError("no request arrives within --duration")
    return Requests(arrivals, num_before, load.trace.num_skipped if is_trace else 0)
