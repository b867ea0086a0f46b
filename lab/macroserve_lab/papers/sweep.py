"""Measurements over the product of axes, with the claims and plots that figures make of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import attrgetter
from statistics import mean
from typing import Any, Generic, TypeVar

from macroserve_lab.papers.figure import Claim, Line, Panel, Quantity
from macroserve_lab.papers.measurements import Curve, Measurement, Values, point

M = TypeVar("M", bound=Measurement)
Cell = dict[str, Any]
"""A value for each axis, by its name."""


Pool = Callable[[Iterable[float]], float]
LOWEST_TRIED = attrgetter("lowest")
"""Lowest rate that a search tries, which stands for any lower one; see ``Sweep.compare``."""


@dataclass(frozen=True, slots=True)
class Comparison:
    metric: str
    of: Callable[[float, float], float]

    def scaled(self, metric: str, scale: float) -> "Comparison":
        """Return the comparison of values times ``scale``."""
        return Comparison(metric, lambda ours, theirs: self.of(scale * ours, scale * theirs))


TIMES = Comparison("times", lambda ours, theirs: ours / theirs)
GAIN = Comparison("gain in %", lambda ours, theirs: 100 * (ours / theirs - 1))
POINTS = Comparison("points", lambda ours, theirs: 100 * (ours - theirs))


def reading(key: str, scale: float = 1.0) -> Quantity:
    """Return a measured value as a quantity."""
    return lambda values: scale * values[key]


class Sweep(Mapping[Any, M]):
    """Measurements by their cell in the product of named axes: a tuple, or the value of one axis.

    Methods select cells by keyword, with one value of an axis, or a list of them.
    """

    def __init__(
        self,
        measure: Callable[..., M],
        only: Callable[..., bool] = lambda *cell: True,
        /,
        **axes: Iterable[Any],
    ) -> None:
        """Call ``measure`` for the cells of the product that ``only`` accepts."""
        self._axes = tuple(axes)
        self._measured = {
            self._index(cell): measure(*cell) for cell in product(*axes.values()) if only(*cell)
        }

    def _index(self, cell: tuple[Any, ...]) -> Any:
        return cell if len(self._axes) > 1 else cell[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._measured)

    def __len__(self) -> int:
        return len(self._measured)

    def __getitem__(self, cell: Any) -> M:
        return self._measured[cell]

    def cells(self, **chosen: Any) -> Iterator[tuple[Cell, M]]:
        for index, measurement in self._measured.items():
            values = index if len(self._axes) > 1 else (index,)
            cell = dict(zip(self._axes, values, strict=True))
            if all(
                cell[axis] in (each if isinstance(each, list) else [each])
                for axis, each in chosen.items()
            ):
                yield cell, measurement

    def key(self, of: str = "", /, **cell: Any) -> str:
        """Return the key of a cell's value; ``of`` is the name of one of several."""
        return point(
            self._measured[self._index(tuple([cell[axis] for axis in self._axes]))].key, of
        )

    def value(self, of: str = "", scale: float = 1.0, /, **cell: Any) -> Quantity:
        return reading(self.key(of, **cell), scale)

    def pooled(self, pool: Pool, of: str = "", /, **chosen: Any) -> Quantity:
        """Return, for example, the mean over the chosen cells."""
        keys = [point(each.key, of) for _, each in self.cells(**chosen)]
        return lambda values: pool(values[key] for key in keys)

    def compare(
        self,
        how: Comparison,
        ours: Any,
        theirs: Any,
        /,
        *,
        axis: str = "system",
        of: str = "",
        pool: Pool = mean,
        least: float | Callable[[M], float] = 0.0,
        least_ours: bool = False,
        **chosen: Any,
    ) -> Quantity:
        """Return the comparison of one value of ``axis`` with another, or with each of a list,
        pooled over the chosen cells.

        least: value that stands for any lower one of theirs, and of ours with ``least_ours``.
        """
        pairs = [
            (self.key(of, **{**cell, axis: ours}), point(measured.key, of), floor)
            for cell, measured in self.cells(**chosen, **{axis: theirs})
            for floor in [least(measured) if callable(least) else least]
        ]
        return lambda values: pool(
            how.of(max(values[our], floor) if least_ours else values[our], max(values[key], floor))
            for our, key, floor in pairs
        )

    def over(
        self,
        how: Comparison,
        case: str,
        ours: str,
        papers: Mapping[str, float | None],
        /,
        *,
        metric: str = "",
        is_summary: bool = False,
        **options: Any,
    ) -> list[Claim]:
        """Return a row for each baseline of ``papers``.

        options: those of ``compare``.
        """
        return [
            Claim(
                case,
                f"{ours} over {baseline}",
                metric or how.metric,
                self.compare(how, ours, baseline, **options),
                paper,
                is_summary,
            )
            for baseline, paper in papers.items()
        ]

    def table(
        self,
        case: str,
        strategy: str,
        metric: str = "{of}",
        /,
        *,
        of: Sequence[str] = ("",),
        scale: float = 1.0,
        paper: Callable[..., float | None] = lambda **cell: None,
        is_summary: bool = False,
        **chosen: Any,
    ) -> list[Claim]:
        """Return a row for each of the chosen cells.

        case, strategy, metric: formats, of the cell's values, the measurement ``m`` and ``of``.
        of: names of the values of a cell.
        paper: function of the cell.
        """
        return [
            Claim(
                case.format(**names),
                strategy.format(**names),
                metric.format(**names),
                self.value(name, scale, **cell),
                paper(**cell),
                is_summary,
            )
            for cell, measurement in self.cells(**chosen)
            for name in of
            for names in [{**cell, "m": measurement, "of": name}]
        ]


def curves_table(sweep: Sweep[Curve], case: str = "", strategy: str = "{system}") -> list[Claim]:
    """Return a row for each point of the curves; ``case`` is a format that goes before the rate."""
    return [
        Claim(
            f"{case.format(**cell)}{rate:g} requests/s",
            strategy.format(**cell),
            curve.metric.value,
            reading(curve.point(rate)),
        )
        for cell, curve in sweep.cells()
        for rate in curve.rates
    ]


@dataclass(frozen=True, slots=True)
class Plot(Generic[M]):
    """Panels of a sweep.

    title, line: formats of a cell's values, by which cells are grouped.
    along: axis whose values are x, or function of measurement and values that returns a line.
    of: name of one of several values of a cell.
    scale: function of a cell that returns the factor on its value.
    """

    sweep: Sweep[M]
    title: str
    x: str
    y: str
    along: str | Callable[[M, Values], Line]
    line: str = "{system}"
    of: str = ""
    scale: Callable[..., float] = lambda **cell: 1.0
    is_share: bool = False

    def __call__(self, values: Values) -> list[Panel]:
        panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for cell, measurement in self.sweep.cells():
            names = {**cell, "m": measurement}
            lines = panels.setdefault(self.title.format(**names), {})
            if isinstance(self.along, str):
                value = self.scale(**cell) * values[point(measurement.key, self.of)]
                at = (cell[self.along], value)
                lines.setdefault(self.line.format(**names), []).append(at)
            else:
                lines[self.line.format(**names)] = [*self.along(measurement, values)]
        return [
            Panel(title, self.x, self.y, lines, self.is_share) for title, lines in panels.items()
        ]


def attainment_plot(
    sweep: Sweep[M],
    title: str,
    x: str = "requests/s",
    along: str | Callable[[M, Values], Line] = Curve.line,
) -> Plot[M]:
    return Plot(sweep, title, x, "within their targets", along, is_share=True)
