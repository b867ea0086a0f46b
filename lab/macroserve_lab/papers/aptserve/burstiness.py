"""Attainment by how bursty the arrivals are, at one rate a data set (section 6.4, figure 9)."""

from macroserve_lab.papers.aptserve.cases import NUM_REQUESTS, VARIATIONS, experiment
from macroserve_lab.papers.figure import Figure, Panel, Row
from macroserve_lab.papers.measurements import Attainment, Measurement, Values

RATES = {"ShareGPT": 3.8, "HumanEval": 9.0, "LongBench": 1.5}
"""Requests per second, at which the paper's Apt-Serve and Sarathi attain about as much."""

BASELINES = ("prefill-first", "sarathi")
COMPARED = (*BASELINES, "aptserve")

MOST_TIMES = 7.5
"""Most times a baseline's attainment that Apt-Serve attains."""


def measurements() -> list[Measurement]:
    return [
        Attainment(
            measurement_key(name, variation, variant),
            experiment("OPT-13B", name, variant, variation),
            rate,
            NUM_REQUESTS / rate,
        )
        for name, rate in RATES.items()
        for variation in VARIATIONS
        for variant in COMPARED
    ]


def rows(values: Values) -> list[Row]:
    """Return how much more Apt-Serve attains, then each point of the paper's plots.

    A baseline that attains nothing counts as one that attains one request.
    """

    def attained(name: str, variation: int, variant: str) -> float:
        return values[measurement_key(name, variation, variant)]

    def over(name: str, variation: int, baseline: str) -> float:
        least = max(attained(name, variation, baseline), 1 / NUM_REQUESTS)
        return attained(name, variation, "aptserve") / least

    cells = [(name, variation) for name in RATES for variation in VARIATIONS]
    most = [
        Row(
            "burstiness",
            "bursty arrivals, at most",
            f"aptserve over {baseline}",
            "times",
            max(over(*cell, baseline) for cell in cells if cell[1] > 1),
            MOST_TIMES,
        )
        for baseline in BASELINES
    ]
    return most + [
        Row(
            "burstiness",
            f"{name}, {RATES[name]:g} requests/s, CV {variation}",
            variant,
            "attainment in %",
            100 * attained(name, variation, variant),
            is_summary=True,
        )
        for name, variation in cells
        for variant in COMPARED
    ]


def panels(values: Values) -> list[Panel]:
    return [
        Panel(
            f"OPT-13B, {name}, {rate:g} requests/s",
            "coefficient of variation of the gaps",
            "within their targets",
            {
                variant: [(cv, values[measurement_key(name, cv, variant)]) for cv in VARIATIONS]
                for variant in COMPARED
            },
            is_share=True,
        )
        for name, rate in RATES.items()
    ]


def measurement_key(name: str, variation: int, variant: str) -> str:
    """Return the key of an attainment."""
    return f"burstiness {name} {variation} {variant}"


FIGURE = Figure(
    measurements,
    rows,
    "Bursts lower attainment as in the paper but on ShareGPT, where 3.8 requests/s exceed what the "
    "memory holds of requests as long as these: then steady arrivals make all late, and between "
    "bursts the queues empty (prefill-first 0 % of steady and 9 % of bursty arrivals, Apt-Serve 74 "
    "and 79 %). The rate decides it: of 2 requests/s Apt-Serve attains 97, 94 and 75 % and sarathi "
    "93, 79 and 22 % by the CV, a gap that widens as the paper's does.",
    panels,
)
