"""The papers' data sets, as distributions with the printed averages, medians and maxima."""

from dataclasses import dataclass
from random import Random

from macroserve.workload.arrivals import Lengths
from macroserve.workload.lengths import Lognormal

NUM_LENGTHS = 4096
"""Number of length pairs drawn to represent a data set."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A data set with independent lengths of prompts and outputs."""

    name: str
    prompt: Lognormal
    output: Lognormal

    def lengths(self, random: Random) -> Lengths:
        """Draw ``NUM_LENGTHS`` pairs of prompt and output tokens."""
        return [(self.prompt.draw(random), self.output.draw(random)) for _ in range(NUM_LENGTHS)]


INPUT_CUT = 4096
"""Maximum prompt tokens (EcoServe, section 4.1)."""

OUTPUT_CUT = 2048
"""Maximum response tokens; an assumption, as the papers do not print it."""

OPT_LENGTH = 2048
"""Maximum context of OPT models, tokens (Apt-Serve, section 6.2)."""

WORKLOADS = {
    workload.name: workload
    for workload in (
        # EcoServe, table 3.
        Workload(
            "Alpaca-gpt4",
            Lognormal(20.63, 17, INPUT_CUT),
            Lognormal(163.80, 119, OUTPUT_CUT),
        ),
        Workload(
            "ShareGPT",
            Lognormal(343.76, 148, INPUT_CUT),
            Lognormal(237.20, 152, OUTPUT_CUT),
        ),
        Workload(
            "LongBench",
            Lognormal(2686.89, 2736.5, INPUT_CUT),
            Lognormal(101.78, 19, OUTPUT_CUT),
        ),
        # Apt-Serve shows lengths in a plot only; these are the averages that DistServe prints for
        # the sets from which Apt-Serve takes its targets. Medians are guesses.
        Workload("HumanEval", Lognormal(171.3, 150, OPT_LENGTH), Lognormal(98.2, 80, OPT_LENGTH)),
        Workload(
            "LongBench, 2k",
            Lognormal(1738.3, 1800, 1950),
            Lognormal(90.7, 60, OPT_LENGTH),
        ),
        # EconoServe, table 2: means and maxima; the medians are guesses. Prompts of BookCorpus are
        # cut into chunks of 2048 tokens, which most of them fill.
        Workload("Alpaca", Lognormal(19.31, 16, 2470), Lognormal(58.41, 45, 292)),
        Workload("ShareGPT, vLLM's", Lognormal(161.31, 80, 3200), Lognormal(337.99, 280, 991)),
        Workload("BookCorpus", Lognormal(1952.11, 2040, 2048), Lognormal(681.2, 690, 1041)),
        # Apt-Serve, table 7: means, medians and maxima. With these means and caps, no lognormal has
        # the medians of WikiText's responses (552) and BookCorpus' prompts (14,781).
        Workload("WikiText", Lognormal(914, 871, 1840), Lognormal(521, 490, 992)),
        Workload("Arxiv", Lognormal(7812, 6853, 19_600), Lognormal(420, 226, 9754)),
        Workload("BookCorpus, 24k", Lognormal(16_944, 16_500, 23_706), Lognormal(185, 221, 299)),
        # Sarathi-Serve, table 2: medians and 90th percentiles, from which the means follow.
        Workload(
            "ShareGPT4",
            Lognormal(2442, 1730, 2 * INPUT_CUT),
            Lognormal(481, 415, OUTPUT_CUT),
        ),
    )
}

AZURE_CONVERSATIONS = Workload(
    "Azure conversations", Lognormal(1154.7, 1020, 14_050), Lognormal(211.13, 129, 1000)
)
"""Azure's LLM inference trace of 2023, 19,366 conversations: means, medians and maxima."""

AZURE_CODE = Workload("Azure code", Lognormal(2047.8, 1469, 7437), Lognormal(27.88, 13, 1899))
"""Azure's LLM inference trace of 2023, 8,819 code completions: means, medians and maxima."""
