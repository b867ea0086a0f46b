"""Attainment over the rate, and latencies at one rate (figure 8 shows such curves)."""

from macroserve_lab.papers.ecoserve.cases import DURATION_S, SCALED, STRATEGY_NAMES, experiments
from macroserve_lab.papers.figure import Figure, Panel, Row, curve_rows
from macroserve_lab.papers.measurements import Curve, Measurement, Percentiles, Values

CURVE_RATES = (5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 45.0, 50.0)
SPREAD_RATE = 15.0
"""Rate at which all strategies but the disaggregated ones still attain most requests."""

CURVES = {
    variant: Curve(
        f"attainment {variant}",
        experiments(SCALED, variant)[-1],
        CURVE_RATES,
        DURATION_S[SCALED.workload],
    )
    for variant in (*STRATEGY_NAMES, "unified")
}
SPREADS = {
    variant: Percentiles(
        f"latencies {variant}", curve.experiment, SPREAD_RATE, DURATION_S[SCALED.workload]
    )
    for variant, curve in CURVES.items()
}


def measurements() -> list[Measurement]:
    return [*CURVES.values(), *SPREADS.values()]


def rows(values: Values) -> list[Row]:
    return curve_rows("attainment", CURVES, values)


def panels(values: Values) -> list[Panel]:
    case = f"{SCALED.model}, {SCALED.workload}, {SCALED.cluster}"
    lines = {variant: curve.line(values) for variant, curve in CURVES.items()}
    return [
        Panel(case, "requests/s", "within their targets", lines, is_share=True),
        *[
            Panel(
                f"{SPREAD_RATE:g} requests/s",
                f"{latency} in s",
                "of the requests",
                {variant: spread.line(latency, values) for variant, spread in SPREADS.items()},
                is_share=True,
            )
            for latency in ("TTFT", "TPOT")
        ],
    ]


FIGURE = Figure(measurements, rows, panels=panels)
