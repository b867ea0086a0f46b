"""Section 4.3: goodput of more and more instances under one cell scheduler."""

from macroserve.papers.ecoserve.cases import DURATION_S, LEVELS, LOWEST, SCALED, experiments
from macroserve.papers.figure import Figure, Panel, Row
from macroserve.papers.measurements import Goodput, Measurement, Values

SIZES = (1, 2, 4, 8)
GAIN_OF_FOUR = 5.6
"""Factor by which four instances serve more than one (section 4.3)."""


def measurements() -> list[Measurement]:
    """Return the goodputs of more and more instances under one cell scheduler."""
    return [
        Goodput(
            _key(variant, size),
            experiments(SCALED, variant, size)[0],
            LEVELS["P90"],
            DURATION_S[SCALED.workload],
            LOWEST[SCALED.workload] / 4,
        )
        for variant in ("ecoserve", "prefill-first")
        for size in SIZES
    ]


def rows(values: Values) -> list[Row]:
    alone = values[_key("ecoserve", 1)]
    four = values[_key("ecoserve", 4)]
    name = "static-scaling"
    gain = Row(name, "4 instances over 1", "ecoserve", "times", four / alone, GAIN_OF_FOUR)
    return [gain] + [
        Row(name, f"{size} instances", variant, "requests/s", values[_key(variant, size)])
        for variant in ("ecoserve", "prefill-first")
        for size in SIZES
    ]


def panels(values: Values) -> list[Panel]:
    lines = {
        variant: [(float(size), values[_key(variant, size)]) for size in SIZES]
        for variant in ("ecoserve", "prefill-first")
    }
    return [Panel("static scaling", "instances", "requests/s at P90", lines)]


def _key(variant: str, size: int) -> str:
    return f"static scaling {variant} {size}"


FIGURE = Figure(measurements, rows, panels=panels)
