"""Figure 14: the scheduler's own time, which the simulator's requests do not wait for."""

from dataclasses import dataclass
from statistics import mean

from macroserve.sim.instance import StepOutcome
from macroserve.sim.results import AT_END
from macroserve.sim.simulation import single_cell
from macroserve.sim.simulation_trace import SimulationTrace
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.econoserve.ablation import ABLATED
from macroserve_lab.papers.econoserve.cases import (
    FASTSERVE,
    MODELS,
    MULTIRES,
    ORCA,
    RATES,
    SYNC_COUPLED,
    TRACES,
    VARIANTS,
    Trace,
    experiment,
)
from macroserve_lab.papers.figure import Figure, Row
from macroserve_lab.papers.measurements import Measurement, Values
from macroserve_lab.timed_scheduler import TimedScheduler

MODEL = MODELS[0]
BASELINE = "prefill-first"
COMPARED = {
    BASELINE: VARIANTS[BASELINE],
    "orca": ORCA,
    "sarathi": VARIANTS["sarathi"],
    "fastserve": FASTSERVE,
    "multires": MULTIRES,
    "sync-coupled": SYNC_COUPLED,
    **{name: ABLATED[name] for name in ("decoupled", "synced", "ordered", "with all")},
}
HIGHER = {
    "orca": -2.15,
    "sarathi": 1.84,
    "decoupled": 2.05,
    "synced": 2.16,
    "ordered": 2.36,
    "with all": 2.93,
}
"""Percent by which the scheduler's overhead is higher than vLLM's, in the mean of all models and
traces (section 4.2)."""

OF_COMPLETION = {"fastserve": 17.0, "multires": 34.0, "sync-coupled": 2.14}
"""Percent of the completion time that scheduling takes (section 2.2), in the mean of all traces.
Where nearly all time is that of steps, it is their share as well."""


class _StepTimes(SimulationTrace):
    """The trace sums the virtual time of all steps, in seconds."""

    total_s = 0.0

    def stepped(self, instance: str, outcome: StepOutcome) -> None:
        self.total_s += outcome.end_s - outcome.start_s


@dataclass(frozen=True, slots=True)
class Overhead:
    """The measurement is the processor time of one instance's scheduler on the machine at hand, as
    a share of the virtual time of its steps; the rate is in requests per second."""

    key: str
    experiment: Experiment
    rate: float
    duration_s: float

    def measure(self, seed: int) -> Values:
        arrivals, num_before = self.experiment.arrivals(self.rate, self.duration_s, seed)
        spec = self.experiment.scenario.instance_spec(arrivals, seed)
        steps = _StepTimes()
        simulation = single_cell(spec, 1, trace=steps)
        (instance,) = simulation.router.instances.values()
        timed = TimedScheduler(instance.policy.config, spec.latency())
        instance.policy = timed
        simulation.serve(arrivals, num_before=num_before, stop=AT_END)
        return {self.key: timed.elapsed_s / steps.total_s}


OVERHEADS = {
    (trace, name): Overhead(
        f"overhead {trace.workload} {name}",
        experiment(MODEL, trace, variant),
        RATES[MODEL.name][trace.workload],
        trace.duration_s,
    )
    for trace in TRACES
    for name, variant in COMPARED.items()
}


def measurements() -> list[Measurement]:
    return list(OVERHEADS.values())


def rows(values: Values) -> list[Row]:
    def percent(trace: Trace, name: str) -> float:
        return 100 * values[OVERHEADS[trace, name].key]

    def higher(name: str) -> float:
        return mean(percent(trace, name) - percent(trace, BASELINE) for trace in TRACES)

    metric = "% of the steps' time"
    return (
        [
            Row(
                "overhead",
                f"{MODEL.name}, all traces",
                f"{name} over {BASELINE}",
                "points of the steps' time",
                higher(name),
                paper,
            )
            for name, paper in HIGHER.items()
        ]
        + [
            Row(
                "overhead",
                f"{MODEL.name}, all traces",
                name,
                metric,
                mean(percent(trace, name) for trace in TRACES),
                paper,
            )
            for name, paper in OF_COMPLETION.items()
        ]
        + [
            Row(
                "overhead",
                f"{MODEL.name}, {trace.workload}",
                name,
                metric,
                percent(trace, name),
                is_summary=True,
            )
            for trace, name in OVERHEADS
        ]
    )


SMALL_SHARES = (
    "No scheduler here takes more than 1 % of the steps' time, so that none can differ by two "
    "points; the paper does not say what its percent is of. On Alpaca, timed one after the other "
    "on two cores, vLLM's takes 0.45 % and EconoServe's 0.64 %, of which lending is 0.1 points; "
    "beside other work on the same cores the figures differ by half from run to run. While all "
    "requests decode and none waits, the simulator decides once for up to 32 steps, under all "
    "strategies alike. FastServe, MultiRes and SyncCoupled take 1.0, 0.4 and 0.5 % on ShareGPT "
    "(vLLM 0.2 %). The length of the queue decides: at the paper's 28 requests/s, with hundreds "
    "of requests in it after 8 s, MultiRes takes 1.7 %, SyncCoupled 3.0 % and EconoServe 1.3 %. "
    "DistServe's overhead is not among them: the paper counts its search for a parallelism."
)

FIGURE = Figure(measurements, rows, SMALL_SHARES)
