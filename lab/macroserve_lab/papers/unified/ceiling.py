"""Compare the goodput of ``unified`` with the rate at which the devices can end requests at all.

A strategy cannot make the devices faster. If late requests are not served at all, a strategy that
keeps nine in ten requests within their targets serves at most about a ninth more than the requests
that end per second without any targets, and some more if the late requests are the largest.
"""

from collections.abc import Mapping

from macroserve.core.strategies import STRATEGIES
from macroserve.core.tuning import Tuning
from macroserve_lab.papers.econoserve.cases import SERVED
from macroserve_lab.papers.figure import Figure, Row
from macroserve_lab.papers.measurements import Ceiling, Measurement, Values
from macroserve_lab.papers.unified.benchmarks import (
    BASELINE,
    BENCHMARKS,
    CHUNKS,
    DURATION_S,
    UNIFIED,
    Benchmark,
    with_scenario,
)
from macroserve_lab.papers.unified.goodput import LOOKS

CHOSEN = [benchmark for benchmark in BENCHMARKS if benchmark.limit_s is None]


def _ceilings(benchmark: Benchmark) -> Mapping[str, Ceiling]:
    """Return the variants that end many requests where no request is urgent; the best one
    counts."""
    patient = with_scenario(benchmark.experiment, slo=SERVED, high_priority_ratio=0.0)
    tried = {
        BASELINE: with_scenario(patient, strategy=STRATEGIES[BASELINE]),
        **{
            f"sarathi {size}": with_scenario(
                patient, strategy=STRATEGIES["sarathi"], tuning=Tuning(chunk_tokens=size)
            )
            for size in CHUNKS[2:]
        },
    }
    return {
        name: Ceiling(
            f"{benchmark.key(name)}, ceiling", experiment, DURATION_S / 2, benchmark.lowest
        )
        for name, experiment in tried.items()
    }


def measurements() -> list[Measurement]:
    ceilings = [each for benchmark in CHOSEN for each in _ceilings(benchmark).values()]
    return [*LOOKS.values(), *ceilings]


def rows(values: Values) -> list[Row]:
    found = []
    for benchmark in CHOSEN:
        case = f"{benchmark.paper}, {benchmark.name}"
        ceiling = max(values[each.key] for each in _ceilings(benchmark).values())
        goodput = values[benchmark.key(UNIFIED)]
        found += [
            Row("ceiling", case, UNIFIED, "share of it", goodput / ceiling, is_summary=True),
            Row("ceiling", case, "any, without targets", "requests/s", ceiling),
            Row("ceiling", case, UNIFIED, "requests/s", goodput),
        ]
    return found


FIGURE = Figure(measurements, rows)
