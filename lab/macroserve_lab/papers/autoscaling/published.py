"""llm-d's published benchmark of autoscaling, and the same with starts of other lengths."""

from macroserve_lab.papers.autoscaling.loads import Stages
from macroserve_lab.papers.autoscaling.scaled import METRICS, START_S, Scaled, fleet, rates
from macroserve_lab.papers.figure import Figure, Panel, Row
from macroserve_lab.papers.measurements import Measurement, Values

LOAD = Stages(((2, 330), (4, 360), (6, 360), (8, 360), (10, 360), (4, 360), (1, 300)))
PUBLISHED = {"attainment": 0.958, "mean instances": 5.93}
"""llm-d's own figures (slo-aware/benchmark-templates/BENCHMARK.md). A static pool of 8 attains
100 %."""

STARTS_S = (10.0, 30.0, 60.0, START_S, 120.0, 200.0, 300.0)
FAILING_SHARES, LONG_DOWN_S = {"one start in ten": 0.1, "three starts in ten": 0.3}, 300.0
SLOW_START_S = 200.0

BY_START = {
    start_s: Scaled(f"start {start_s:g} s", fleet(start_s=start_s), LOAD) for start_s in STARTS_S
}
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


def _rows(values: Values) -> list[Row]:
    return [
        Row(
            "llm-d",
            "start 100 s",
            "unified",
            metric,
            BENCHMARK.value(metric, values),
            PUBLISHED.get(metric),
            is_summary=True,
        )
        for metric in METRICS
    ] + [row for case, measured in VARIANTS.items() for row in measured.rows("llm-d", case, values)]


def _panels(values: Values) -> list[Panel]:
    arrivals = rates(each.at_s for each in LOAD.arrivals(0))
    return [
        Panel("load", "time in s", "requests/s", {"arrivals": arrivals}),
        BENCHMARK.panel("start 100 s", values),
        *[measured.panel(case, values) for case, measured in VARIANTS.items()],
    ]


def _start_rows(values: Values) -> list[Row]:
    return [
        row
        for start_s, measured in BY_START.items()
        for row in measured.rows("start-up", f"start {start_s:g} s", values)
    ]


def _start_panels(values: Values) -> list[Panel]:
    def line(metric: str) -> dict[str, list[tuple[float, float]]]:
        return {"unified": [(at_s, each.value(metric, values)) for at_s, each in BY_START.items()]}

    return [
        Panel("attainment", "start in s", "within targets", line("attainment"), is_share=True),
        Panel("mean instances", "start in s", "instances", line("mean instances")),
    ]


def _benchmarks() -> list[Measurement]:
    return [BENCHMARK, *VARIANTS.values()]


FIGURES = {
    "llm-d": Figure(
        _benchmarks,
        _rows,
        "llm-d's figures are of real devices and its own engine; ours are simulated. Instances "
        "that start or drain count here.",
        _panels,
    ),
    "start-up": Figure(lambda: [*BY_START.values()], _start_rows, panels=_start_panels),
}
