"""Bursts: synthetic ones, and the requests of Azure's conversations as recorded."""

from macroserve.workload.trace import Trace
from macroserve_lab.papers.autoscaling.loads import Bursts, ChangingLoad, Recorded
from macroserve_lab.papers.autoscaling.scaled import Scaled, fleet, rates
from macroserve_lab.papers.figure import Figure, Panel
from macroserve_lab.papers.measurements import Values

LOAD = Bursts(2400.0, calm=(2.0, 300.0), busy=(6.0, 120.0), variation=2.0)

SPEED = 3.0
"""Speed at which Azure's conversations are replayed: 16 requests/s in the mean."""


def _figure(name: str, case: str, load: ChangingLoad, least: int) -> Figure:
    measured = Scaled(name, fleet(least), load)

    def panels(values: Values) -> list[Panel]:
        arrivals = rates(each.at_s for each in load.arrivals(0))
        return [
            Panel("load", "time in s", "requests/s", {"arrivals": arrivals}),
            measured.panel(case, values),
        ]

    return Figure(lambda: [measured], lambda values: measured.rows(name, case, values), "", panels)


FIGURE = _figure("bursts", "bursts of 6 requests/s over 2", LOAD, 2)


def recorded_figure(trace: Trace) -> Figure:
    """Return the figure of a trace."""
    return _figure("azure", f"{SPEED:g} x speed", Recorded(trace, SPEED), 1)
