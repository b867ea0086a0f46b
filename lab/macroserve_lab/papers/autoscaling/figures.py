"""Autoscaling: a benchmark that llm-d has published, other times of a start, and bursts."""

from functools import partial

from macroserve.workload.trace import Trace
from macroserve_lab.papers.autoscaling.loads import Bursts, ChangingLoad, Recorded, Stages
from macroserve_lab.papers.autoscaling.scaled import METRICS, START_S, Scaled, fleet, rates
from macroserve_lab.papers.figure import Claim, Figure, Panel, annotated
from macroserve_lab.papers.measurements import Values, point
from macroserve_lab.papers.sweep import Plot, Sweep, reading

# llm-d's published benchmark, and the same with starts of other lengths.

LOAD = Stages(((2, 330), (4, 360), (6, 360), (8, 360), (10, 360), (4, 360), (1, 300)))
PUBLISHED = {"attainment": 0.958, "mean instances": 5.93}
"""llm-d's own figures (slo-aware/benchmark-templates/BENCHMARK.md). A static pool of 8 attains
100 %."""

STARTS_S = (10.0, 30.0, 60.0, START_S, 120.0, 200.0, 300.0)
FAILING_SHARES, LONG_DOWN_S = {"one start in ten": 0.1, "three starts in ten": 0.3}, 300.0
SLOW_START_S = 200.0

BY_START = Sweep(
    lambda start_s: Scaled(f"start {start_s:g} s", fleet(start_s=start_s), LOAD), start_s=STARTS_S
)
BENCHMARK = BY_START[START_S]
VARIANTS = {
    **{
        f"{name} fail, {start_s:g} s": Scaled(
            f"{share:g} of the starts of {start_s:g} s fail",
            fleet(start_s=start_s, failing_share=share),
            LOAD,
        )
        for start_s in (START_S, SLOW_START_S)
        for name, share in FAILING_SHARES.items()
    },
    "removed after 300 s": Scaled("long window", fleet(down_s=LONG_DOWN_S), LOAD),
}
"""The benchmark with starts that fail, and with the window for scaling down that is the default."""


def _table(case: str, scaled: Scaled, papers: dict[str, float] | None = None) -> list[Claim]:
    return [
        Claim(
            case,
            "unified",
            metric,
            reading(point(scaled.key, metric)),
            (papers or {}).get(metric),
            is_summary=True,
        )
        for metric in METRICS
    ]


def _panels(load: ChangingLoad, cases: dict[str, Scaled], values: Values) -> list[Panel]:
    arrivals = rates(each.at_s for each in load.arrivals(0))
    return [
        Panel("load", "time in s", "requests/s", {"arrivals": arrivals}),
        *[scaled.panel(case, values) for case, scaled in cases.items()],
    ]


# Bursts: synthetic ones, and the requests of Azure's conversations as recorded.

BURSTS = Bursts(2400.0, calm=(2.0, 300.0), busy=(6.0, 120.0), variation=2.0)

SPEED = 3.0
"""Speed at which Azure's conversations are replayed: 16 requests/s in the mean."""


def _changing(name: str, case: str, load: ChangingLoad, least: int) -> Figure:
    scaled = Scaled(name, fleet(least), load)
    return Figure([scaled], _table(case, scaled), [partial(_panels, load, {case: scaled})])


def azure(trace: Trace) -> Figure:
    """Return the figure of a trace."""
    return _changing("azure", f"{SPEED:g} x speed", Recorded(trace, SPEED), 1)


FIGURES = annotated(
    __name__,
    {
        "llm-d": Figure(
            [BENCHMARK, *VARIANTS.values()],
            _table("start 100 s", BENCHMARK, PUBLISHED)
            + [_table(case, scaled) for case, scaled in VARIANTS.items()],
            [partial(_panels, LOAD, {"start 100 s": BENCHMARK, **VARIANTS})],
        ),
        "start-up": Figure(
            BY_START.values(),
            BY_START.table("start {start_s:g} s", "unified", of=METRICS, is_summary=True),
            [
                Plot(BY_START, of, "start in s", y, "start_s", "unified", of, is_share=is_share)
                for of, y, is_share in (
                    ("attainment", "within targets", True),
                    ("mean instances", "instances", False),
                )
            ],
        ),
        "bursts": _changing("bursts", "bursts of 6 requests/s over 2", BURSTS, 2),
    },
)
RECORDED = {"azure": azure}
"""Figures of a recorded load, made from its trace."""
