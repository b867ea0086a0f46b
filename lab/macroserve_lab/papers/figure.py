"""Figures of a paper as tables: measurements, claims about them, plots, and one renderer."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from macroserve_lab.papers.measurements import Measurement, Values

OFF = 0.3

Line = Sequence[tuple[float, float]]
Quantity = Callable[[Values], float]
"""A figure that is computed from measured values."""


@dataclass(frozen=True, slots=True)
class Row:
    """One value of a paper next to ours; ``paper`` is None where the paper prints none.

    is_summary: whether the row sums up others, or is one of few, and is shown although no paper
        prints it.
    """

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
class Claim:
    """A row whose value is not measured yet.

    strategy: text, or a function where the text depends on what is measured.
    """

    case: str
    strategy: str | Callable[[Values], str]
    metric: str
    ours: Quantity
    paper: float | None = None
    is_summary: bool = False

    def row(self, values: Values) -> Row:
        strategy = self.strategy if isinstance(self.strategy, str) else self.strategy(values)
        ours = self.ours(values)
        return Row(self.case, strategy, self.metric, ours, self.paper, self.is_summary)


Table = Sequence[Any]
"""Claims, and tables of them."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot of a figure.

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
    """A table of a paper's figure, and its plots.

    measurements: measurements that the table and the plots need.
    note: why rows differ that are off, or that the paper only plots.
    """

    measurements: Collection[Measurement]
    table: Table
    plots: Sequence[Callable[[Values], Sequence[Panel]]] = ()
    note: str = ""

    def rows(self, values: Values) -> list[Row]:
        return [claim.row(values) for claim in _flat(self.table)]

    def panels(self, values: Values) -> list[Panel]:
        return [panel for plot in self.plots for panel in plot(values)]


def _flat(table: Table) -> Iterator[Claim]:
    for each in table:
        if isinstance(each, Claim):
            yield each
        else:
            yield from _flat(each)


def annotated(module: str, figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """Return the figures with their notes, the sections of ``notes.md`` next to ``module``."""
    package = module.rpartition(".")[0]
    text = files(package).joinpath("notes.md").read_text()
    _, *sections = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    notes = dict(zip(sections[::2], map(_one_line, sections[1::2]), strict=True))
    if unknown := notes.keys() - figures.keys():
        raise ValueError(f"{package}/notes.md has notes on unknown figures: {sorted(unknown)}")
    return {name: replace(figure, note=notes.get(name, "")) for name, figure in figures.items()}


def _one_line(text: str) -> str:
    return " ".join(text.split())
