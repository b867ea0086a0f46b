"""Attainment at a fixed rate under stricter and looser targets (figure 9, second row)."""

from dataclasses import replace

from macroserve.core.request import Slo
from macroserve.core.strategies import STRATEGIES
from macroserve.papers.ascendra.cases import (
    CASES,
    CHAT,
    DURATION_S,
    LEVEL,
    STARVED,
    STRATEGY_NAMES,
    SUMMARIES,
    Case,
    experiment,
)
from macroserve.papers.figure import Figure, Panel, Row
from macroserve.papers.measurements import Attainment, Measurement, Values

RATES = {CHAT: 9.0, SUMMARIES: 11.0, STARVED: 2.0}
"""Requests per second at which Ascendra holds slightly above 90 % under table 2's targets here."""

SCALES = (0.125, 0.177, 0.25, 0.354, 0.5, 0.707, 1.0, 1.414, 2.0, 2.828, 4.0)
STRICTER = 4.0
"""Factor up to which Ascendra keeps stricter targets than the baselines at 90 % (section 8.2)."""


def measurements() -> list[Measurement]:
    return [
        Attainment(
            _key(case, name, scale),
            experiment(replace(case, slo=_scaled(case.slo, scale)), STRATEGIES[name]),
            rate,
            DURATION_S,
        )
        for case, rate in RATES.items()
        for name in STRATEGY_NAMES
        for scale in SCALES
    ]


def rows(values: Values) -> list[Row]:
    def strictest(case: Case, name: str) -> float:
        """Return the last scale of the targets that is kept, counted from the loosest."""
        kept = 2 * SCALES[-1]
        for scale in reversed(SCALES):
            if values[_key(case, name, scale)] < LEVEL:
                break
            kept = scale
        return kept

    def gain(case: Case, name: str) -> float:
        return max(strictest(case, each) for each in ("prefill-first", "sarathi")) / strictest(
            case, name
        )

    most = max(gain(case, "ascendra") for case in CASES)
    return [
        Row("strictness", "up to", "ascendra over baselines", "times stricter", most, STRICTER)
    ] + [
        Row("strictness", case.name, name, "strictest scale", strictest(case, name))
        for case in CASES
        for name in STRATEGY_NAMES
    ]


def panels(values: Values) -> list[Panel]:
    return [
        Panel(
            f"{case.name}, {rate:g} requests/s",
            "targets, times table 2's",
            "within their targets",
            {
                name: [(scale, values[_key(case, name, scale)]) for scale in SCALES]
                for name in STRATEGY_NAMES
            },
            is_share=True,
        )
        for case, rate in RATES.items()
    ]


def _scaled(slo: Slo, scale: float) -> Slo:
    return Slo(slo.ttft_s * scale, slo.tpot_s * scale)


def _key(case: Case, name: str, scale: float) -> str:
    return f"strictness {case.name} {name} {scale:g}"


FIGURE = Figure(
    measurements,
    rows,
    "A step of the scales that are tried is 1.41.",
    panels,
)
