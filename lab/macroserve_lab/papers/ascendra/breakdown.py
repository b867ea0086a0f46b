"""Latencies and waits of Ascendra's pools and of the baselines (figure 10)."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

from macroserve.core.status import Pool
from macroserve.core.strategies import STRATEGIES
from macroserve.sim.instance import StepOutcome
from macroserve.sim.results import AT_END
from macroserve.sim.simulation_trace import SimulationTrace
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.ascendra.cases import (
    CHAT,
    DURATION_S,
    STRATEGY_NAMES,
    experiment,
    pools_of,
)
from macroserve_lab.papers.figure import Figure, Row
from macroserve_lab.papers.measurements import Measurement, Metric, Values

RATES = (9.0, 10.5, 12.0)
"""Requests per second, an assumption: the paper plots its figure at a rate that it does not print.
Ascendra holds the first two."""

METRICS = (Metric.ATTAINMENT, Metric.LATE_TTFT, Metric.TPOT, Metric.THROUGHPUT)

SHORTER_AT_HP = 4.0
"""Factor by which requests wait longer at an LP instance than at an HP one (section 8.3)."""

LEAST_DELAY_S = 1e-3
"""Delay in seconds that stands for any shorter one."""


class Delays(SimulationTrace):
    """The trace keeps when each request was offloaded, and where and when its prefill began."""

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


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The measurement is the metrics of one run, the mean delay of the requests in each pool until
    their prefills begin, in seconds, and the share of the requests that each pool serves.

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
        values = {self.point(metric.value): metric.of(outcome) for metric in METRICS}
        for pool, delays in delays_s.items():
            values[self.delay(pool)] = mean(delays) if delays else 0.0
            values[self.share(pool)] = len(delays) / num_requests
        return values

    def point(self, name: str) -> str:
        return f"{self.key}, {name}"

    def delay(self, pool: Pool) -> str:
        return self.point(f"delay at {pool.name} in s")

    def share(self, pool: Pool) -> str:
        return self.point(f"share of {pool.name}")


BREAKDOWNS = {
    (name, rate): Breakdown(
        f"breakdown {name} {rate:g}", experiment(CHAT, STRATEGIES[name]), rate, DURATION_S
    )
    for name in STRATEGY_NAMES
    for rate in RATES
}


def measurements() -> list[Measurement]:
    return list(BREAKDOWNS.values())


def rows(values: Values) -> list[Row]:
    found: list[Row] = []
    for rate in RATES:
        case, ascendra = f"{rate:g} requests/s", BREAKDOWNS["ascendra", rate]
        delays_s = {pool: values[ascendra.delay(pool)] for pool in Pool}
        shorter = delays_s[Pool.LP] / max(delays_s[Pool.HP], LEAST_DELAY_S)
        found.append(
            Row("breakdown", case, "LP over HP", "times the delay", shorter, SHORTER_AT_HP)
        )
        share = values[ascendra.share(Pool.HP)]
        found.append(Row("breakdown", case, "HP", "share of the requests", share, is_summary=True))
        for pool, delay_s in delays_s.items():
            found.append(Row("breakdown", case, pool.name, "delay in s", delay_s, is_summary=True))
        for name in STRATEGY_NAMES:
            measured = BREAKDOWNS[name, rate]
            found += [
                Row(
                    "breakdown",
                    case,
                    name,
                    metric.value,
                    values[measured.point(metric.value)],
                    is_summary=True,
                )
                for metric in METRICS
            ]
            if name != "ascendra":
                delay_s = values[measured.delay(Pool.LP)]
                found.append(Row("breakdown", case, name, "delay in s", delay_s, is_summary=True))
    return found


HIGH_OVERRUN = (
    "At 9 requests/s a request waits 0.05 s at an LP instance until its prefill begins, and half "
    "as long at the HP one, which serves four requests in ten: nothing waits for long before the "
    "devices are full. At 12 requests/s, which nobody holds but `unified`, the HP instance is "
    "overrun, as the paper says of high rates: requests wait 24 s there and 0.2 s at the LP ones, "
    "so that the P99 of TTFT is 77 s (vLLM 34 s), while 69 % are in time (vLLM 43 %, Sarathi "
    "5 %). Responses at the end of the run take as long as ever, so that throughput lies below "
    "the rate for all."
)

FIGURE = Figure(measurements, rows, HIGH_OVERRUN)
