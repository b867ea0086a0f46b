"""Goodput by the order of the waiting requests, where half of them have loose targets (sections 3.3
and 5.2). The paper has one target for all in its figures; then the deadlines' order is that of the
arrivals."""

from dataclasses import replace

from macroserve.core.request import Slo
from macroserve.core.slo_class import SloClass
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import Ordering
from macroserve.workload.class_mix import ClassMix
from macroserve_lab.papers.ascendra.cases import CASES, Case, experiment, goodput, percent
from macroserve_lab.papers.figure import Figure, Row
from macroserve_lab.papers.measurements import Measurement, Values

LOOSE = 10.0
"""Factor on the targets of the requests without a reader."""

LOOSE_SHARE = 0.5


def measurements() -> list[Measurement]:
    return [
        goodput(
            _key(case, ordering),
            replace(
                experiment(case, replace(STRATEGIES["ascendra"], ordering=ordering)),
                classes=ClassMix((_loose(case),)),
            ),
        )
        for case in CASES
        for ordering in Ordering
    ]


def rows(values: Values) -> list[Row]:
    def held(case: Case, ordering: Ordering) -> float:
        return values[_key(case, ordering)]

    found: list[Row] = []
    for case in CASES:
        found += [
            Row("ordering", case.name, ordering.name, "requests/s", held(case, ordering))
            for ordering in Ordering
        ]
        for ordering in (Ordering.EDF, Ordering.SLACK):
            gain = percent(held(case, ordering), held(case, Ordering.FCFS))
            name = f"{ordering.name} over FCFS"
            found.append(Row("ordering", case.name, name, "gain in %", gain, is_summary=True))
    return found


def _loose(case: Case) -> SloClass:
    slo = Slo(LOOSE * case.slo.ttft_s, LOOSE * case.slo.tpot_s)
    return SloClass(name="loose", slo=slo, share=LOOSE_SHARE)


def _key(case: Case, ordering: Ordering) -> str:
    return f"ordering {case.name} {ordering}"


LATE_TOO = (
    "At the rates that are held the devices are nearly full. A little beyond them the queue grows "
    "without end, and outlasts loose targets of 10 s as well: of Mistral-7B at 10.9 requests/s, "
    "EDF lets 4.8 % of the urgent requests and 3.5 % of the loose ones miss their TTFT, FCFS "
    "14.9 % and none. Found by varying: of Mistral-7B, EDF gains 7 % with targets thirty times "
    "as loose, and 28 % with a hundred times (over 200 s). Qwen-14B has memory for few requests, "
    "and gains 5 % with thirty times, too. Llama3.1-8B with its long prompts misses the time "
    "between tokens (17 % of the urgent requests, and 0.1 % their TTFT), which no order changes."
)

FIGURE = Figure(measurements, rows, LATE_TOO)
