"""Plot a comparison with matplotlib, which the ``bench`` extra installs."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from macroserve.bench.serve.plot import BLUE, DPI, GRAY, share_axis
from macroserve_lab.bench.peers.figures import LEVEL, OURS
from macroserve_lab.bench.peers.journal import Point

COLORS = ("#d9822b", "#0a8f6a", "#8f398f", "#b7950b", "#c23030", "#5c7080", "#7d5ba6")
MARKERS = "sD^vPX*"
NUM_COLUMNS = 3
"""Maximum panels in a row."""


def plot_peers(path: Path, points: Sequence[Point]) -> None:
    """Draw attainment over rate, a panel per load, as a PNG or SVG file: medians of the rounds, and
    a band from minimum to maximum."""
    loads = sorted({point.load for point in points})
    names = sorted({point.deployment for point in points}, key=lambda name: (name != OURS, name))
    styles = {name: (BLUE, "o") for name in names if name == OURS}
    others = [name for name in names if name != OURS]
    for index, name in enumerate(others):
        styles[name] = (COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)])
    num_columns = min(NUM_COLUMNS, len(loads))
    num_rows = -(-len(loads) // num_columns)
    figure = Figure(figsize=(5 * num_columns, 4.1 * num_rows + 0.5), layout="constrained")
    panels = [figure.add_subplot(num_rows, num_columns, 1 + i) for i in range(len(loads))]
    for axes, load in zip(panels, loads, strict=True):
        for name in reversed(names):  # ours is drawn last, above the others
            found = [p for p in points if p.load == load and p.deployment == name]
            _plot_deployment(axes, name, found, *styles[name])
        axes.axhline(LEVEL, color=GRAY, linestyle="--", linewidth=1)
        axes.set_title(load)
        axes.set_xlabel("load (req/s)")
        share_axis(axes, "requests within their targets")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=min(4, len(names)))
    figure.savefig(path, dpi=DPI)


def _plot_deployment(
    axes: Axes, name: str, points: Sequence[Point], color: str, marker: str
) -> None:
    by_rate: defaultdict[float, list[float]] = defaultdict(list)
    for point in points:
        by_rate[point.rate].append(point.attainment)
    rates = sorted(by_rate)
    if any(len(found) > 1 for found in by_rate.values()):
        low, high = ([end(by_rate[rate]) for rate in rates] for end in (min, max))
        axes.fill_between(rates, low, high, color=color, alpha=0.12, linewidth=0)
    medians = [median(by_rate[rate]) for rate in rates]
    label = name.replace("_", " ")
    axes.plot(rates, medians, color=color, marker=marker, markersize=5, label=label)
