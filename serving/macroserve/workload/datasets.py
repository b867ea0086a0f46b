"""The papers' data sets, as distributions with the averages, medians and maxima that they print."""

from dataclasses import dataclass
from functools import cached_property
from math import erf, exp, log, sqrt
from random import Random

from macroserve.workload.arrivals import Lengths

NUM_LENGTHS = 4096
"""Pairs of lengths that stand for a data set."""

WIDEST = 4.0
"""Standard deviations, of the logarithm, among which one is looked for."""


@dataclass(frozen=True)
class CutLognormal:
    """Token counts: lognormal, and what is longer than ``most`` counts as ``most``.

    The median is met exactly, the mean as the cut leaves it. Raises ValueError where no lognormal
    has both.
    """

    mean: float
    median: float
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.median < self.most:
            raise ValueError(f"the median lies between one token and the most, got {self}")
        if abs(self._mean(self.deviation) / self.mean - 1) > 0.01:
            raise ValueError(f"no lognormal that is cut there has that mean, got {self}")

    @cached_property
    def deviation(self) -> float:
        """Of the logarithm: the one whose mean comes closest."""
        candidates = [WIDEST * i / 4000 for i in range(1, 4001)]
        return min(candidates, key=lambda deviation: abs(self._mean(deviation) - self.mean))

    def draw(self, random: Random) -> int:
        drawn = random.lognormvariate(log(self.median), self.deviation)
        return min(self.most, max(1, round(drawn)))

    def _mean(self, deviation: float) -> float:
        """Of the distribution with that deviation, after the cut."""
        cut = (log(self.most) - log(self.median)) / deviation
        below = self.median * exp(deviation**2 / 2) * _normal(cut - deviation)
        return below + self.most * (1 - _normal(cut))


@dataclass(frozen=True, slots=True)
class Workload:
    """prompt, output: lengths in tokens, independent of each other."""

    name: str
    prompt: CutLognormal
    output: CutLognormal

    def lengths(self, random: Random) -> Lengths:
        return [(self.prompt.draw(random), self.output.draw(random)) for _ in range(NUM_LENGTHS)]


def _normal(value: float) -> float:
    """The standard normal distribution function."""
    return (1 + erf(value / sqrt(2))) / 2


INPUT_CUT = 4096
"""Prompts are cut there (EcoServe, section 4.1)."""

OUTPUT_CUT = 2048
"""The papers do not say how long the longest responses are."""

OPT_LENGTH = 2048
"""OPT models have no position beyond (Apt-Serve, section 6.2)."""

WORKLOADS = {
    workload.name: workload
    for workload in (
        # EcoServe, table 3.
        Workload(
            "Alpaca-gpt4",
            CutLognormal(20.63, 17, INPUT_CUT),
            CutLognormal(163.80, 119, OUTPUT_CUT),
        ),
        Workload(
            "ShareGPT",
            CutLognormal(343.76, 148, INPUT_CUT),
            CutLognormal(237.20, 152, OUTPUT_CUT),
        ),
        Workload(
            "LongBench",
            CutLognormal(2686.89, 2736.5, INPUT_CUT),
            CutLognormal(101.78, 19, OUTPUT_CUT),
        ),
        # Apt-Serve shows its lengths in a plot only; these are the averages that DistServe prints
        # for the sets of which it takes the targets, too. Medians are guesses.
        Workload(
            "HumanEval", CutLognormal(171.3, 150, OPT_LENGTH), CutLognormal(98.2, 80, OPT_LENGTH)
        ),
        Workload(
            "LongBench, 2k",
            CutLognormal(1738.3, 1800, 1950),
            CutLognormal(90.7, 60, OPT_LENGTH),
        ),
        # EconoServe, table 2: means and maxima; the medians are guesses. Prompts of BookCorpus are
        # cut into chunks of 2048 tokens, which most of them fill.
        Workload("Alpaca", CutLognormal(19.31, 16, 2470), CutLognormal(58.41, 45, 292)),
        Workload(
            "ShareGPT, vLLM's", CutLognormal(161.31, 80, 3200), CutLognormal(337.99, 280, 991)
        ),
        Workload("BookCorpus", CutLognormal(1952.11, 2040, 2048), CutLognormal(681.2, 690, 1041)),
        # Sarathi-Serve, table 2: medians and 90th percentiles, from which the means follow.
        Workload(
            "ShareGPT4",
            CutLognormal(2442, 1730, 2 * INPUT_CUT),
            CutLognormal(481, 415, OUTPUT_CUT),
        ),
    )
}
