"""Compare ``unified`` on each paper's own benchmark with that paper's strategy and with the best of
all others, and find which requests pay for the gain."""

from macroserve_lab.papers.figure import Figure, Row
from macroserve_lab.papers.measurements import CloserLook, Goodput, Measurement, Values
from macroserve_lab.papers.unified import benchmarks
from macroserve_lab.papers.unified.benchmarks import BENCHMARKS, UNIFIED

LOOKS = {
    f"{benchmark.paper}, {benchmark.name}": CloserLook(goodput)
    for benchmark in BENCHMARKS
    if isinstance(goodput := benchmark.search(UNIFIED, benchmark.experiment), Goodput)
}
"""Closer looks at the benchmarks whose measure is goodput: attainment by size, which shows whether
the gain comes from refusing expensive requests, and the longest wait."""


def measurements() -> list[Measurement]:
    looks = {look.key: look for look in LOOKS.values()}
    return [looks.get(each.key, each) for each in benchmarks.measurements(BENCHMARKS)]


def rows(values: Values) -> list[Row]:
    looks = [
        Row("goodput", case, UNIFIED, metric, value)
        for case, look in LOOKS.items()
        for metric, value in look.metrics(values).items()
    ]
    gains = benchmarks.gains("goodput", BENCHMARKS, values)
    return [*gains, *looks, *benchmarks.rates("goodput", BENCHMARKS, values)]


FIGURE = Figure(measurements, rows)
