"""Section 4.3: goodput of more and more instances under one cell scheduler."""

from dataclasses import replace

from macroserve_lab.papers.ecoserve.cases import (
    DURATION_S,
    LEVELS,
    LOWEST,
    SCALED,
    Case,
    experiments,
)
from macroserve_lab.papers.figure import Figure, Panel, Row
from macroserve_lab.papers.measurements import Goodput, Measurement, Values

LARGER = replace(SCALED, model="Qwen2-72B")
SIZES = {SCALED: (1, 2, 4, 8), LARGER: (1, 2, 4)}
"""Numbers of instances, by case: at most as many as the devices hold."""

COMPARED = ("ecoserve", "prefill-first")
GAINS_OF_FOUR = {SCALED: 5.6, LARGER: None}
"""Factor by which four instances serve more than one (section 4.3); of the larger model the paper
says only that it is above four."""


def measurements() -> list[Measurement]:
    """Return the goodputs of more and more instances under one cell scheduler."""
    return [
        Goodput(
            measurement_key(case, variant, size),
            experiments(case, variant, size)[0],
            LEVELS["P90"],
            DURATION_S[case.workload],
            LOWEST[case.workload] / 4,
        )
        for case, sizes in SIZES.items()
        for variant in COMPARED
        for size in sizes
    ]


def rows(values: Values) -> list[Row]:
    def rate(case: Case, variant: str, size: int) -> float:
        return values[measurement_key(case, variant, size)]

    name = "static-scaling"
    gains = [
        Row(
            name,
            f"{case.model}, 4 instances over 1",
            variant,
            "times",
            rate(case, variant, 4) / rate(case, variant, 1),
            paper if variant == "ecoserve" else None,
            is_summary=True,
        )
        for case, paper in GAINS_OF_FOUR.items()
        for variant in COMPARED
    ]
    return gains + [
        Row(
            name,
            f"{case.model}, {size} instances",
            variant,
            "requests/s",
            rate(case, variant, size),
        )
        for case, sizes in SIZES.items()
        for variant in COMPARED
        for size in sizes
    ]


def panels(values: Values) -> list[Panel]:
    return [
        Panel(
            f"static scaling, {case.model}",
            "instances",
            "requests/s at P90",
            {
                variant: [
                    (float(size), values[measurement_key(case, variant, size)]) for size in sizes
                ]
                for variant in COMPARED
            },
        )
        for case, sizes in SIZES.items()
    ]


def measurement_key(case: Case, variant: str, size: int) -> str:
    """Return the key of the goodput of so many instances."""
    return f"static scaling {case.model} {variant} {size}"


FIGURE = Figure(measurements, rows, panels=panels)
