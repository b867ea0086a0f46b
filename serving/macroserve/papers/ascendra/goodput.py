"""Goodput of each of table 2's cases (section 8.2)."""

from macroserve.core.strategies import STRATEGIES
from macroserve.papers.ascendra.cases import (
    CASES,
    CHAT,
    STARVED,
    STRATEGY_NAMES,
    SUMMARIES,
    Case,
    experiment,
    goodput,
    percent,
)
from macroserve.papers.figure import Figure, Row
from macroserve.papers.measurements import Measurement, Values

GAINS = {
    (CHAT, "prefill-first"): 19.1,
    (CHAT, "sarathi"): 17.4,
    (SUMMARIES, "prefill-first"): 15.4,
    (SUMMARIES, "sarathi"): 15.4,
    (STARVED, "prefill-first"): 100 * (2.8 / 2.55 - 1),
    (STARVED, "sarathi"): 0.0,
}
"""Gains of goodput in percent. For the last case the paper prints rates: 2.55, 2.8 and 2.8
requests/s."""


def measurements() -> list[Measurement]:
    return [
        goodput(f"{case.name} {name}", experiment(case, STRATEGIES[name]))
        for case in CASES
        for name in STRATEGY_NAMES
    ]


def rows(values: Values) -> list[Row]:
    def gain(case: Case, baseline: str) -> float:
        return percent(values[f"{case.name} ascendra"], values[f"{case.name} {baseline}"])

    return [
        Row("goodput", case.name, f"ascendra over {name}", "gain in %", gain(case, name), paper)
        for (case, name), paper in GAINS.items()
    ] + [
        Row("goodput", case.name, name, "requests/s", values[f"{case.name} {name}"])
        for case in CASES
        for name in STRATEGY_NAMES
    ]


NOTHING_WAITS = (
    "vLLM holds most of what the devices can do: without any targets they end 10.0, 14.7 and 2.1 "
    "requests/s of the three sets (`reproduce unified --figure ceiling`), and it holds 10.9, "
    "11.7 and 2.2. Prefills come first there, and a mean of 0.15 s between tokens is twice what "
    "a step with all its decodes takes, so that no batch misses it and nothing waits before the "
    "devices are full; and as all requests of a set have one TTFT target, slack goes "
    "almost as arrivals do. Found by varying, before Ascendra's LP batches were bounded by time: "
    "where the host takes 15 ms a step and 0.5 ms for each sequence in it, the time between "
    "tokens binds, and Ascendra was ahead of vLLM in all three, by 3, 7 and 5 % (Mistral-7B: 5.4 "
    "and 5.2 requests/s). Of Mistral-7B, Sarathi loses by its chunks of 512 tokens: with 2,048 "
    "it held 10.0. A router that knows nothing of its instances and batches of at most 128 "
    "requests changed little."
)

FIGURE = Figure(measurements, rows, NOTHING_WAITS)
