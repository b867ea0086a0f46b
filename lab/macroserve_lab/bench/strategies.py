"""Compare strategies in a real engine on this machine with the simulator's predictions.

The engine is profiled first. The simulator uses the engine's learned latency model, with the
measured additional time and the jitter of the steps. Then both serve the same requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from random import Random
from statistics import mean, median

from macroserve.bench.profile import Profile
from macroserve.bench.profile import measure as measure_profile
from macroserve.bench.real_engine import serve, started
from macroserve.core.request import Slo
from macroserve.engine.settings import EngineSettings
from macroserve.sim.simulation import single_cell
from macroserve.workload.arrivals import Arrival, Lengths, scaled
from macroserve.workload.datasets import WORKLOADS
from macroserve_lab.arrivals import bursty
from macroserve_lab.goodput import goodput

BASELINE = "prefill-first"
STRATEGIES = (
    BASELINE,
    "vllm",
    "sarathi",
    "ecoserve",
    "aptserve",
    "econoserve",
    "ascendra",
    "unified",
)
LOADS = (0.7, 1.0, 1.3)
"""Rates as shares of the predicted goodput of ``BASELINE``."""

DURATION_S = 40.0
LEVEL = 0.9
LOWEST = 0.5
"""Requests per second at which the search begins."""

LENGTH_SCALE = 0.15
"""Factor on the data sets' lengths, for the small model."""

STEPS_TPOT = 3.0
STEPS_TTFT = {"ShareGPT": 150.0, "LongBench": 450.0}
"""Targets of EcoServe's table 2, in decode steps of one sequence on the paper's devices."""

WORTH_TELLING = 0.05
"""Difference below which two attainments count as equal when orders are compared."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Measured and predicted attainment of one strategy under one load."""

    load: str
    strategy: str
    real: float
    predicted: float

    @property
    def points_apart(self) -> float:
        return 100 * abs(self.real - self.predicted)


async def measure(settings: EngineSettings) -> dict[str, float]:
    """Return the attainments ``strategies.WORKLOAD.LOAD.STRATEGY.real`` and ``.sim``, their
    distance in points, and the share of the pairs that keep their order."""
    profile = await measure_profile(settings)
    trials: list[Trial] = []
    for workload, steps in STEPS_TTFT.items():
        slo = Slo(steps * profile.step_s, STEPS_TPOT * profile.step_s)
        trials += await _trials(profile, replace(settings, slo=slo), workload)
    apart = [trial.points_apart for trial in trials]
    kept = orders_kept(trials)
    return {
        **{
            f"strategies.profile.decode_{num}_ms": 1e3 * profile.decode_s(num)
            for num in profile.decodes_beyond_s
        },
        **{
            f"strategies.profile.prefill_{num}_ms": 1e3 * profile.prefill_s(num)
            for num in profile.prefills_beyond_s
        },
        "strategies.profile.churn": profile.churn,
        "strategies.profile.spread": profile.spread,
        **{f"strategies.{trial.load}.{trial.strategy}.real": trial.real for trial in trials},
        **{f"strategies.{trial.load}.{trial.strategy}.sim": trial.predicted for trial in trials},
        "strategies.apart_points_median": median(apart),
        "strategies.apart_points_max": max(apart),
        "strategies.within_10_points": mean(points <= 10 for points in apart),
        "strategies.orders_kept": mean(kept) if kept else 1.0,
    }


async def _trials(profile: Profile, settings: EngineSettings, workload: str) -> list[Trial]:
    """Return the trials of all strategies under all loads."""
    loads = loads_of(profile, replace(settings, strategy=BASELINE), workload)
    trials: list[Trial] = []
    for each in STRATEGIES:
        tried = replace(settings, strategy=each)
        reals = await _attained(tried, list(loads.values()))
        for (load, arrivals), real in zip(loads.items(), reals, strict=True):
            trials.append(Trial(load, each, real, predicted(profile, tried, arrivals)))
    return trials


def loads_of(profile: Profile, settings: EngineSettings, name: str) -> dict[str, list[Arrival]]:
    """Return requests by the name of their load, such as ``sharegpt.0.7``."""
    random = Random(1)
    lengths = WORKLOADS[name].lengths(random)
    num = len(lengths)
    small = scaled(
        lengths,
        LENGTH_SCALE * sum(prompt for prompt, _ in lengths) / num,
        LENGTH_SCALE * sum(output for _, output in lengths) / num,
    )
    fitting = [
        (prompt, output) for prompt, output in small if prompt + output < settings.max_model_len
    ]

    def attains(rate: float) -> bool:
        return predicted(profile, settings, _arrivals(rate, fitting)) >= LEVEL

    most = goodput(attains, LOWEST, 1000.0)
    return {f"{name.lower()}.{load:g}": _arrivals(load * most, fitting) for load in LOADS}


def _arrivals(rate: float, lengths: Lengths) -> list[Arrival]:
    """Return arrivals with exact output lengths, as nothing else ends a response of the small
    model."""
    found = bursty(rate, 1.0, DURATION_S, lengths, Random(2))
    return [each._replace(max_new_tokens=each.num_output_tokens) for each in found]


async def _attained(settings: EngineSettings, loads: Sequence[Sequence[Arrival]]) -> list[float]:
    """Return the attainments of one engine under one load after another."""
    shares: list[float] = []
    async with started(settings) as engine:
        for index, arrivals in enumerate(loads):
            answers = await serve(engine, arrivals, settings.slo, f"load-{index}")
            shares.append(mean(each.attained(settings.slo) for each in answers))
    return shares


def predicted(profile: Profile, settings: EngineSettings, arrivals: Sequence[Arrival]) -> float:
    return single_cell(profile.instance_spec(settings), 1).serve(arrivals).attainment


def orders_kept(trials: Sequence[Trial]) -> list[bool]:
    """Return, for each pair of trials with different attainments under one load, whether the
    predictions agree with their order."""
    return [
        (one.real - other.real) * (one.predicted - other.predicted) >= 0
        for one, other in combinations(trials, 2)
        if one.load == other.load and abs(one.real - other.real) >= WORTH_TELLING
    ]
