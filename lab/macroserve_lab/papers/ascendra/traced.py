"""Measurements of Ascendra's figures that follow a run step by step."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean, median

from macroserve.core.batch import BatchKind
from macroserve.core.status import Pool
from macroserve.sim.instance import StepOutcome
from macroserve.sim.results import AT_END
from macroserve.sim.simulation_trace import SimulationTrace
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.ascendra.cases import pools_of
from macroserve_lab.papers.measurements import Metric, Values, point

METRICS = (Metric.ATTAINMENT, Metric.LATE_TTFT, Metric.TPOT, Metric.THROUGHPUT)

KINDS = {BatchKind.PREFILL: "prefill batches", BatchKind.MIXED: "hybrid batches"}
NUM_MINUTES = 6


class Delays(SimulationTrace):
    """A trace of when each request was offloaded, and where and when its prefill began."""

    def __init__(self) -> None:
        super().__init__()
        self._arrived_s: dict[str, float] = {}
        self._offloaded_s: dict[str, float] = {}
        self._begun: dict[str, tuple[str, float]] = {}

    def stepped(self, instance: str, outcome: StepOutcome) -> None:
        for handed_back in outcome.batch.handed_back:
            self._offloaded_s.setdefault(handed_back.request_id, outcome.start_s)
        for prefill in outcome.batch.prefills:
            self._begun.setdefault(prefill.request_id, (instance, outcome.start_s))
        for record in outcome.finished:
            self._arrived_s[record.request.request_id] = record.request.arrival_s

    @property
    def delays(self) -> Iterator[tuple[str, float]]:
        """Yield, for each request that has ended, the instance that served it and the seconds from
        its arrival there until its prefill began."""
        for request_id, arrived_s in self._arrived_s.items():
            instance, began_s = self._begun[request_id]
            yield instance, began_s - self._offloaded_s.get(request_id, arrived_s)


def delay(pool: Pool) -> str:
    return f"delay at {pool.name} in s"


def share(pool: Pool) -> str:
    return f"share of {pool.name}"


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Metrics of one run, the mean delay of the requests in each pool until their prefills begin,
    in seconds, and the share of the requests that each pool serves.

    rate: requests per second.
    """

    key: str
    experiment: Experiment
    rate: float
    duration_s: float

    def measure(self, seed: int) -> Values:
        found = Delays()
        outcome = self.experiment.serve(
            self.rate, self.duration_s, stop=AT_END, seed=seed, trace=found
        )
        pools = pools_of(self.experiment)
        delays_s: dict[Pool, list[float]] = {pool: [] for pool in Pool}
        for instance, delay_s in found.delays:
            delays_s[pools[instance]].append(delay_s)
        num_requests = sum(map(len, delays_s.values()))
        values = {point(self.key, metric): metric.of(outcome) for metric in METRICS}
        for pool, delays in delays_s.items():
            values[point(self.key, delay(pool))] = mean(delays) if delays else 0.0
            values[point(self.key, share(pool))] = len(delays) / num_requests
        return values


class _Busy(SimulationTrace):
    """A trace of the seconds of each instance's batches."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = defaultdict[str, float](float)
        self.end_s = 0.0

    def stepped(self, instance: str, outcome: StepOutcome) -> None:
        self.seconds[instance] += outcome.end_s - outcome.start_s
        self.end_s = max(self.end_s, outcome.end_s)


HP_UTILIZATION = "HP utilization"


@dataclass(frozen=True, slots=True)
class Utilization:
    """The share of the time in which the HP instances run batches, and the attainment.

    rate: requests per second.
    """

    key: str
    experiment: Experiment
    rate: float
    duration_s: float

    def measure(self, seed: int) -> Values:
        busy, pools = _Busy(), pools_of(self.experiment)
        outcome = self.experiment.serve(
            self.rate, self.duration_s, stop=AT_END, seed=seed, trace=busy
        )
        high = [instance for instance, pool in pools.items() if pool is Pool.HP]
        high_s = sum(busy.seconds[instance] for instance in high)
        return {
            point(self.key, HP_UTILIZATION): high_s / (len(high) * busy.end_s),
            point(self.key, "attainment"): outcome.attainment,
        }


class _Errors(SimulationTrace):
    """A trace of relative errors of predicted times, by kind of batch and minute."""

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
    """The median error of predicted times, by kind of batch and minute since the start."""

    key: str
    experiment: Experiment
    rate: float

    def measure(self, seed: int) -> Values:
        errors = _Errors()
        duration_s = 60.0 * NUM_MINUTES
        self.experiment.serve(self.rate, duration_s, stop=AT_END, seed=seed, trace=errors)
        return {
            point(self.key, at_minute(kind, minute)): median(errors.found[kind, minute])
            for kind in KINDS
            for minute in range(NUM_MINUTES)
        }


def at_minute(kind: BatchKind, minute: int) -> str:
    return f"{KINDS[kind]}, minute {minute}"
