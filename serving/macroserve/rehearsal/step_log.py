"""Whether a rehearsal keeps pace: by how much steps came late, and how long the device was idle."""

import json
import os
from collections import deque
from pathlib import Path
from statistics import quantiles
from typing import IO

import structlog

from macroserve.rehearsal.pace import Step

NUM_STEPS = 1000
"""Steps of each report."""
MAX_LATE_SHARE = 0.02
"""Lateness in the 99th percentile, as a share of a step, up to which a rehearsal keeps pace."""


class StepLog:
    """The latest steps, and a file with a line for each if a folder is given."""

    def __init__(self, folder: str | None) -> None:
        self._late: deque[float] = deque(maxlen=NUM_STEPS)
        self._num = 0
        self._file: IO[str] | None = None
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._file = (Path(folder) / f"steps-{os.getpid()}.jsonl").open("w", buffering=1)

    def note(self, step: Step, has_slept: bool) -> None:
        self._late.append(step.late_s / (step.end - step.start))
        self._num += 1
        if (
            self._num % NUM_STEPS == 0
            and (late := quantiles(self._late, n=100)[98]) > MAX_LATE_SHARE
        ):
            structlog.get_logger().warning(
                "rehearsal too slow", late_p99=round(late, 3), wanted=MAX_LATE_SHARE
            )
        if self._file:
            load = step.load
            line = {
                "start": step.start,
                "step_s": step.end - step.start,
                "idle_s": step.idle_s,
                "late_s": step.late_s,
                "has_slept": has_slept,
                "prefills": load.prefills,
                "decodes": load.num_decodes,
                "context": load.decode_context,
            }
            self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        if self._file:
            self._file.close()
