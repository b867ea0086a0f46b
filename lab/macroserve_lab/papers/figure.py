"""Figures of a paper: rows beside the paper's own, and panels to look at."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from macroserve_lab.papers.measurements import Curve, Measurement, Values

OFF = 0.3

Line = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Row:
    """A row compares one value of a paper with ours; ``paper`` is None where the paper prints none.

    is_summary: whether the row sums up other rows, or is one of few, so that it is shown although
        no paper prints it.
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
    """A panel is one plot of a figure.

    lines: points of each line, by its name.
    is_share: whether y is a share, shown in percent.
    """

    title: str
    x: str
    y: str
    lines: Mapping[str, Line]
    is_share: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure is a set of measurements and the ways to show them.

    measurements: the measurements that the figure needs.
    rows: function that returns the paper's values beside those measured.
    explanation: why the model's rows differ that are off, or that the paper only plots.
    panels: function that returns the plots of the figure.
    """

    measurements: Callable[[], list[Measurement]]
    rows: Callable[[Values], list[Row]]
    explanation: str = ""
    panels: Callable[[Values], list[Panel]] = lambda values: []


def curve_rows(
    figure: str, curves: Mapping[str, Curve], values: Values, case: str = ""
) -> list[Row]:
    """Return a row for each point.

    curves: curve by strategy.
    case: name of the case, if there are several.
    """
    prefix = f"{case}, " if case else ""
    return [
        Row(figure, f"{prefix}{rate:g} requests/s", name, curve.metric.value, value)
        for name, curve in curves.items()
        for rate, value in curve.line(values)
    ]
