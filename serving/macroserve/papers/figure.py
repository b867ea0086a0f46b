"""What a figure of a paper is made of: rows beside its own, and panels to look at."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from macroserve.papers.measurements import Curve, Measurement, Values

OFF = 0.3

Line = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of a paper beside ours; ``paper`` is None where it prints none.

    is_summary: of the other rows, so that it is shown although no paper prints it.
    """

    figure: str
    case: str
    strategy: str
    metric: str
    ours: float
    paper: float | None = None
    is_summary: bool = False

    @property
    def ratio(self) -> float | None:
        return self.ours / self.paper if self.paper else None

    @property
    def is_off(self) -> bool:
        """Return whether the ratio is so far from 1 that it needs an explanation."""
        return self.ratio is not None and abs(self.ratio - 1) > OFF


@dataclass(frozen=True, slots=True)
class Panel:
    """lines: points of each, by its name. is_share: y is a share, shown in percent."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Line]
    is_share: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """measurements: what it takes. rows: the paper's figures beside those measured.
    explanation: what in the model makes the rows differ that are off, or that the paper only plots.
    panels: its pictures."""

    measurements: Callable[[], list[Measurement]]
    rows: Callable[[Values], list[Row]]
    explanation: str = ""
    panels: Callable[[Values], list[Panel]] = lambda values: []


def curve_rows(
    figure: str, curves: Mapping[str, Curve], values: Values, case: str = ""
) -> list[Row]:
    """A row for each point. curves: by strategy. case: what they are of, if there are several."""
    prefix = f"{case}, " if case else ""
    return [
        Row(figure, f"{prefix}{rate:g} requests/s", name, curve.metric.value, value)
        for name, curve in curves.items()
        for rate, value in curve.line(values)
    ]
