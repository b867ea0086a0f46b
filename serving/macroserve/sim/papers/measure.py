"""Measurements that an experiment is made of, carried out on all cores and kept as they come."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from macroserve import core, sim
from macroserve.sim.experiment import Experiment
from macroserve.sim.goodput import PRECISION, goodput

OFF = 0.3

Values = Mapping[str, float]
"""What was measured, by the measurements' keys."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests per second at which ``level`` is attained, over ``duration_s``, by the best of the
    experiments."""

    key: str
    experiments: tuple[Experiment, ...]
    level: float
    duration_s: float
    lowest: float
    highest: float = 400.0

    def measure(self, seed: int) -> float:
        best = 0.0
        for experiment in self.experiments:
            least = max(self.lowest, best * (1 + PRECISION))
            found = experiment.goodput(self.level, self.duration_s, least, self.highest, seed)
            best = max(best, found)
        return best


@dataclass(frozen=True, slots=True)
class Attainment:
    """The share within the targets at a rate."""

    key: str
    experiment: Experiment
    rate: float
    duration_s: float

    def measure(self, seed: int) -> float:
        return self.experiment.serve(self.rate, self.duration_s, seed=seed).attainment


@dataclass(frozen=True, slots=True)
class RateAtLatency:
    """Requests per second up to which the mean normalised latency stays at or below a limit.

    The experiment's targets have to be such that all requests are served to their end.
    """

    key: str
    experiment: Experiment
    limit_s: float
    duration_s: float
    lowest: float
    highest: float = 400.0

    def measure(self, seed: int) -> float:
        def holds(rate: float) -> bool:
            outcome = self.experiment.serve(rate, self.duration_s, seed=seed)
            return outcome.normalised_latency_s <= self.limit_s

        return goodput(holds, self.lowest, self.highest)


Measurement = Goodput | Attainment | RateAtLatency


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of a paper beside ours; ``paper`` is None where it prints none.

    is_summary: of the other rows, so that it is shown although no paper prints it.
    """

    figure: str
    case: str
    strategy: str
    metric: str
    ours: float
    paper: float | None = None
    is_summary: bool = False

    @property
    def ratio(self) -> float | None:
        return self.ours / self.paper if self.paper else None

    @property
    def is_off(self) -> bool:
        """By so much that it wants an explanation."""
        return self.ratio is not None and abs(self.ratio - 1) > OFF


@dataclass(frozen=True, slots=True)
class Figure:
    """measurements: what it takes. rows: the paper's figures beside those measured.
    explanation: what in the model makes the rows differ that are off."""

    measurements: Callable[[], list[Measurement]]
    rows: Callable[[Values], list[Row]]
    explanation: str = ""


class Notebook:
    """What was measured before, in a file to which each new value is added at once.

    A value counts for the very measurement, seed and simulator that it came from and no other.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        self._seed = seed
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # whoever wrote the last line was killed meanwhile
            path.write_text(whole)
        entries = map(json.loads, whole.splitlines())
        self._values = {entry["digest"]: entry["value"] for entry in entries}

    def known(self, measurement: Measurement) -> float | None:
        return self._values.get(self._digest(measurement))

    def note(self, measurement: Measurement, value: float) -> None:
        digest = self._digest(measurement)
        self._values[digest] = value
        entry = {"key": measurement.key, "value": value, "digest": digest}
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def _digest(self, measurement: Measurement) -> str:
        text = f"{_simulator()} {_without_addresses(str(measurement))} {self._seed}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def carry_out(
    measurements: Sequence[Measurement],
    notebook: Notebook,
    seed: int,
    num_processes: int,
    on_progress: Callable[[int], None],
) -> Values:
    """All values, measured now or before. on_progress: told how many more are there."""
    values: dict[str, float] = {}
    missing: list[Measurement] = []
    for measurement in measurements:
        known = notebook.known(measurement)
        if known is None:
            missing.append(measurement)
        else:
            values[measurement.key] = known
    on_progress(len(values))
    for measurement, value in _measured(missing, seed, num_processes):
        notebook.note(measurement, value)
        values[measurement.key] = value
        on_progress(1)
    return values


def _measured(
    measurements: Iterable[Measurement], seed: int, num_processes: int
) -> Iterator[tuple[Measurement, float]]:
    with ProcessPoolExecutor(num_processes) as pool:
        running = {pool.submit(each.measure, seed): each for each in measurements}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@cache
def _simulator() -> str:
    """A digest of all that decides what a simulation gives."""
    digest = hashlib.sha256()
    for package in (core, sim):
        for folder in package.__path__:
            for path in sorted(Path(folder).rglob("*.py")):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _without_addresses(text: str) -> str:
    """A function's repr has its address, which differs from run to run."""
    return " ".join(word for word in text.split() if not word.startswith("0x"))
