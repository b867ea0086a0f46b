"""Error of the latency model while it learns from what is served (figure 6)."""

from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from macroserve.core.batch import BatchKind
from macroserve.core.strategies import STRATEGIES
from macroserve.sim.instance import StepOutcome
from macroserve.sim.results import AT_END
from macroserve.sim.simulation_trace import SimulationTrace
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.ascendra.cases import CHAT, experiment
from macroserve_lab.papers.figure import Figure, Panel, Row
from macroserve_lab.papers.measurements import Measurement, Values

KINDS = {BatchKind.PREFILL: "prefill batches", BatchKind.MIXED: "hybrid batches"}
RATE = 9.0
"""Requests per second that Ascendra holds."""

NUM_MINUTES = 6
LEARNED = 5
"""Minutes after which the paper's model has an error below ``PAPERS_ERROR`` (section 5.1)."""

PAPERS_ERROR = 0.1


class _Errors(SimulationTrace):
    """The trace keeps relative errors of predicted times, by kind of batch and minute."""

    def __init__(self) -> None:
        super().__init__()
        self.found: defaultdict[tuple[BatchKind, int], list[float]] = defaultdict(list)

    def stepped(self, instance: str, outcome: StepOutcome) -> None:
        if outcome.num_steps == 1:
            seconds = outcome.end_s - outcome.start_s
            error = abs(outcome.batch.predicted_s / seconds - 1)
            self.found[outcome.batch.kind, int(outcome.start_s / 60)].append(error)


@dataclass(frozen=True, slots=True)
class ModelErrors:
    """The measurement is the median error of predicted times, by kind of batch and minute since the
    start."""

    key: str
    experiment: Experiment
    rate: float

    def measure(self, seed: int) -> Values:
        errors = _Errors()
        duration_s = 60.0 * NUM_MINUTES
        self.experiment.serve(self.rate, duration_s, stop=AT_END, seed=seed, trace=errors)
        return {
            self.point(kind, minute): median(errors.found[kind, minute])
            for kind in KINDS
            for minute in range(NUM_MINUTES)
        }

    def point(self, kind: BatchKind, minute: int) -> str:
        return f"{self.key}, {KINDS[kind]}, minute {minute}"


ERRORS = ModelErrors("model error", experiment(CHAT, STRATEGIES["ascendra"]), RATE)


def measurements() -> list[Measurement]:
    return [ERRORS]


def rows(values: Values) -> list[Row]:
    return [
        Row(
            "model-error",
            name,
            f"after {minute} min",
            "median error",
            values[ERRORS.point(kind, minute)],
            PAPERS_ERROR if minute == LEARNED else None,
            is_summary=True,
        )
        for kind, name in KINDS.items()
        for minute in (0, 1, LEARNED)
    ]


def panels(values: Values) -> list[Panel]:
    lines = {
        name: [(minute, values[ERRORS.point(kind, minute)]) for minute in range(NUM_MINUTES)]
        for kind, name in KINDS.items()
    }
    return [Panel("Latency model", "minutes", "median error", lines, is_share=True)]


FIGURE = Figure(
    measurements,
    rows,
    "The paper prints a bound, which is reached after five minutes: below 10 %.",
    panels,
)
