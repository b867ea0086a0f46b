"""Plots of runs with matplotlib, which the ``bench`` extra installs."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from macroserve.bench.serve.record import Failure, RequestRecord
from macroserve.bench.serve.report import goodput_sentence
from macroserve.bench.serve.result import Result, Run
from macroserve.core.request import Slo

BLUE, ORANGE, RED, GRAY = "#1f5fa8", "#d9822b", "#c23030", "#5c7080"
DPI = 150
MAX_BINS = 40
MIN_REQUESTS_PER_BIN = 10
BIN_WIDTHS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
LOG_SPAN = 20
"""Ratio of largest to smallest value above which an axis is logarithmic."""


def plot_run(path: Path, model: str, run: Run, slo: Slo) -> None:
    """Write a PNG file with four panels: cumulative TTFT and TPOT with their targets, attainment
    and rates over time. Failed requests have infinite latency."""
    records = [r for r in run.records if r.failure is not Failure.INTERRUPTED]
    succeeded = [r for r in records if r.failure is None]
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    (ttft, tpot), (attainment, rates) = figure.subplots(2, 2)
    figure.suptitle(
        f"{model}: {len(records):,} requests at {run.summary.offered_rate:.4g} req/s, "
        f"{run.summary.num_failed:,} failed, goodput {run.summary.goodput:.4g} req/s"
    )
    _plot_shares(ttft, "TTFT", [r.ttft_s or 0.0 for r in succeeded], len(records), slo.ttft_s)
    _plot_shares(tpot, "TPOT", [r.tpot_s or 0.0 for r in succeeded], len(records), slo.tpot_s)
    edges = _bin_edges(run.summary.elapsed_s, len(records))
    _plot_attainment(attainment, records, edges, slo, run.summary.attainment or 0.0)
    _plot_rates(rates, records, succeeded, edges)
    figure.savefig(path, format="png", dpi=DPI)


def plot_goodput(path: Path, result: Result, level: float, slo: Slo, unit: str) -> None:
    """Write a PNG file of attainment over load, with the level and the load found."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    goodput = result.goodput
    axes.set_title(
        f"{result.model}, SLO: TTFT {slo.ttft_s:g} s, TPOT {slo.tpot_s * 1e3:g} ms\n"
        f"{goodput_sentence(goodput, unit)}",
        wrap=True,
    )
    points = sorted((run.intensity, run.summary.attainment or 0.0) for run in result.runs)
    loads, attainments = zip(*points, strict=True)
    axes.plot(loads, attainments, "o-", color=BLUE, label="probes")
    axes.axhline(level, color=RED, linestyle="--", label=f"level {level:.0%}")
    if goodput and goodput.load is not None:
        axes.axvline(goodput.load, color=ORANGE, linestyle=":", label=f"{goodput.load:.4g} {unit}")
    if loads[-1] > LOG_SPAN * loads[0]:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda load, _: f"{load:g}"))
    axes.set_xlabel(f"load ({unit})")
    share_axis(axes, "attainment")
    axes.legend(loc="lower left")
    figure.savefig(path, format="png", dpi=DPI)


def _plot_shares(
    axes: Axes, name: str, values_s: Sequence[float], num_requests: int, target_s: float
) -> None:
    """Plot the share of all requests whose latency is at most x."""
    share_axis(axes, "share of requests")
    longest_s = max(*values_s, target_s) if values_s else target_s
    factor, unit = (1.0, "s") if longest_s >= 2 else (1e3, "ms")
    axes.set_xlabel(f"{name} ({unit})")
    if values_s:
        ordered = np.sort(values_s) * factor
        shares = np.arange(len(ordered) + 1) / num_requests
        axes.step(np.concatenate((ordered[:1], ordered)), shares, color=BLUE, where="post")
        if ordered[0] > 0 and longest_s * factor / ordered[0] > LOG_SPAN:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    within = sum(value_s <= target_s for value_s in values_s) / max(1, num_requests)
    axes.axvline(target_s * factor, color=RED, linestyle="--")
    axes.set_title(f"{name}: {within:.1%} within the SLO of {target_s * factor:g} {unit} (dashed)")


def _plot_attainment(
    axes: Axes, records: Sequence[RequestRecord], edges: np.ndarray, slo: Slo, overall: float
) -> None:
    """Plot the attainment by arrival time."""
    arrived, _ = np.histogram([r.scheduled_s for r in records], edges)
    attained, _ = np.histogram([r.scheduled_s for r in records if r.meets(slo)], edges)
    centers = (edges[:-1] + edges[1:]) / 2
    some = arrived > 0
    axes.plot(centers[some], attained[some] / arrived[some], "o-", color=BLUE, markersize=4)
    axes.axhline(overall, color=GRAY, linestyle="--")
    axes.set_title(f"Attainment of the SLO: {overall:.1%} overall (dashed)")
    axes.set_xlabel("time of arrival (s)")
    axes.set_xlim(edges[0], edges[-1])
    share_axis(axes, f"attainment, each {edges[1]:g} s")


def _plot_rates(
    axes: Axes,
    records: Sequence[RequestRecord],
    succeeded: Sequence[RequestRecord],
    edges: np.ndarray,
) -> None:
    for name, times_s, color in (
        ("offered", [r.scheduled_s for r in records], BLUE),
        ("served", [r.ended_s for r in succeeded], ORANGE),
    ):
        counts, _ = np.histogram(times_s, edges)
        axes.stairs(counts / np.diff(edges), edges, color=color, label=name, linewidth=1.5)
    axes.set_title("Request rates")
    axes.set_xlabel("time (s)")
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylabel(f"req/s, mean of each {edges[1]:g} s")
    axes.set_ylim(0, 1.2 * axes.get_ylim()[1])
    axes.grid(alpha=0.3)
    axes.legend(loc="upper right", ncols=2)


def share_axis(axes: Axes, label: str) -> None:
    axes.set_ylabel(label)
    axes.set_ylim(-0.02, 1.04)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(alpha=0.3)


def _bin_edges(elapsed_s: float, num_requests: int) -> np.ndarray:
    """Return the edges of at most MAX_BINS bins of a round width from 0 to past ``elapsed_s``, with
    enough requests in each for a share."""
    max_bins = min(MAX_BINS, num_requests / MIN_REQUESTS_PER_BIN)
    width_s = next((w for w in BIN_WIDTHS_S if elapsed_s <= w * max_bins), BIN_WIDTHS_S[-1])
    return np.arange(int(elapsed_s / width_s) + 2) * width_s
