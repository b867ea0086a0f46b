"""Measurements on all cores, with a cache of results."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from statistics import mean

from macroserve.sim import SIMULATOR_VERSION
from macroserve_lab.papers.measurements import Measurement, Values


class ResultCache:
    """A file of measured values, to which each measurement is appended at once.

    An entry is valid for the same measurement, seed and version of the simulator.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # the process that wrote the last line was killed
            path.write_text(whole)
        entries = map(json.loads, whole.splitlines())
        self._known: dict[str, Values] = {entry["digest"]: entry["values"] for entry in entries}

    def known(self, measurement: Measurement, seed: int) -> Values | None:
        return self._known.get(_digest(measurement, seed))

    def note(self, measurement: Measurement, seed: int, values: Values) -> None:
        digest = _digest(measurement, seed)
        self._known[digest] = values
        entry = {"values": dict(values), "digest": digest}
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def measure_all(
    measurements: Sequence[Measurement],
    cache: ResultCache,
    seeds: Sequence[int],
    num_processes: int,
    on_progress: Callable[[int], None],
) -> Values:
    """Return all values, measured now or before, in the mean of the seeds.

    on_progress: called with the number of measurements left to carry out, each seed's counted by
        itself.
    """
    values: dict[str, list[float]] = {}

    def take(found: Values) -> None:
        for key, value in found.items():
            values.setdefault(key, []).append(value)

    missing: list[tuple[Measurement, int]] = []
    for seed, measurement in product(seeds, measurements):
        known = cache.known(measurement, seed)
        if known is None:
            missing.append((measurement, seed))
        else:
            take(known)
    on_progress(len(seeds) * len(measurements) - len(missing))
    for measurement, seed, found in _measured(missing, num_processes):
        cache.note(measurement, seed, found)
        take(found)
        on_progress(1)
    return {key: mean(found) for key, found in values.items()}


def distinct(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Return the measurements without duplicates, which figures may share."""
    return [*{_digest(each, 0): each for each in measurements}.values()]


def _measured(
    missing: Iterable[tuple[Measurement, int]], num_processes: int
) -> Iterator[tuple[Measurement, int, Values]]:
    with ProcessPoolExecutor(num_processes) as pool:
        running = {pool.submit(each.measure, seed): (each, seed) for each, seed in missing}
        try:
            for future in as_completed(running):
                yield *running[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _digest(measurement: Measurement, seed: int) -> str:
    text = f"{SIMULATOR_VERSION} {_with_sorted_sets(_without_addresses(str(measurement)))} {seed}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_addresses(text: str) -> str:
    """Remove the address from a function's repr, which differs from run to run."""
    return " ".join(word for word in text.split() if not word.startswith("0x"))


def _with_sorted_sets(text: str) -> str:
    """Sort the members of each frozenset's repr, whose order differs from process to process."""
    return re.sub(
        r"frozenset\(\{([^{}]*)\}\)", lambda found: ", ".join(sorted(found[1].split(", "))), text
    )
