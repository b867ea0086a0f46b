"""The experiments of papers and of other projects: setups, measurements, and tables of claims."""

from collections.abc import Callable, Mapping
from pathlib import Path

from macroserve.workload.trace import TimeUnit, Trace, read_trace
from macroserve_lab.papers.aptserve import figures as aptserve
from macroserve_lab.papers.ascendra import figures as ascendra
from macroserve_lab.papers.autoscaling import figures as autoscaling
from macroserve_lab.papers.claims import figures as claims
from macroserve_lab.papers.econoserve import figures as econoserve
from macroserve_lab.papers.ecoserve import figures as ecoserve
from macroserve_lab.papers.figure import Figure
from macroserve_lab.papers.prefixes import figures as prefixes
from macroserve_lab.papers.unified import figures as unified

PAPERS: Mapping[str, Mapping[str, Figure]] = {
    "aptserve": aptserve.FIGURES,
    "ascendra": ascendra.FIGURES,
    "autoscaling": autoscaling.FIGURES,
    "claims": claims.FIGURES,
    "econoserve": econoserve.FIGURES,
    "ecoserve": ecoserve.FIGURES,
    "prefixes": prefixes.FIGURES,
    "unified": unified.FIGURES,
}

RECORDED: Mapping[str, Mapping[str, Callable[[Trace], Figure]]] = {
    "autoscaling": autoscaling.RECORDED,
    "prefixes": prefixes.RECORDED,
}
"""Figures of a recorded load, made from its trace, which is not part of this project."""


def figures_of(
    paper: str, trace: Path | None = None, unit: TimeUnit | None = None
) -> Mapping[str, Figure]:
    """Return the figures of a paper by name, those of a recorded load where its trace is given.

    unit: unit of the trace's times, where it names none (``read_trace``).

    Raises ValueError for a trace that cannot be read, or that no figure of the paper needs.
    """
    if trace is None:
        return PAPERS[paper]
    if paper not in RECORDED:
        raise ValueError(f"no figure of {paper} needs a trace")
    recorded = read_trace(trace, lenient=False, unit=unit)
    made = {name: make(recorded) for name, make in RECORDED[paper].items()}
    return {**PAPERS[paper], **made}
