"""Measurements carried out on all cores, and kept as they come."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path

from macroserve import core, sim
from macroserve.sim.papers.measurements import Measurement, Values


class Notebook:
    """What was measured before, in a file to which each measurement is added at once.

    It counts for the very same measurement, seed and simulator, and for no other.
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
        self._known: dict[str, Values] = {entry["digest"]: entry["values"] for entry in entries}

    def known(self, measurement: Measurement) -> Values | None:
        return self._known.get(self._digest(measurement))

    def note(self, measurement: Measurement, values: Values) -> None:
        digest = self._digest(measurement)
        self._known[digest] = values
        entry = {"values": dict(values), "digest": digest}
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
    """All values, measured now or before. on_progress: told how many more are carried out."""
    values: dict[str, float] = {}
    missing: list[Measurement] = []
    for measurement in measurements:
        known = notebook.known(measurement)
        if known is None:
            missing.append(measurement)
        else:
            values.update(known)
    on_progress(len(measurements) - len(missing))
    for measurement, found in _measured(missing, seed, num_processes):
        notebook.note(measurement, found)
        values.update(found)
        on_progress(1)
    return values


def _measured(
    measurements: Iterable[Measurement], seed: int, num_processes: int
) -> Iterator[tuple[Measurement, Values]]:
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
