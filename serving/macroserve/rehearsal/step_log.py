"""Log of rehearsed steps; sleeps that end late show a machine that is too busy."""

import json
import os
from pathlib import Path
from statistics import quantiles
from typing import IO

from macroserve.api.logs import get_logger
from macroserve.rehearsal.pace import Step

NUM_STEPS = 1000
"""Steps after which lateness is judged."""
MAX_LATE_SHARE = 0.02
"""Lateness in the 99th percentile, as a share of a step, up to which a rehearsal keeps pace."""

log = get_logger(__name__)


class StepLog:
    """Warnings about late steps, and a file with a line for each step if a folder is given."""

    def __init__(self, folder: str | None) -> None:
        self._late: list[float] = []
        self._file: IO[str] | None = None
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._file = (Path(folder) / f"steps-{os.getpid()}.jsonl").open("w", buffering=1)

    def note(self, step: Step, has_slept: bool) -> None:
        """Take in a step whose tokens the engine has.

        has_slept: whether the engine waited for the end; else the step had ended before.
        """
        if has_slept:
            self._late.append(step.late_s / (step.end - step.start))
        if len(self._late) == NUM_STEPS:
            late_p99 = quantiles(self._late, n=100)[98]
            if late_p99 > MAX_LATE_SHARE:
                log.warning("rehearsal too slow", late_p99=round(late_p99, 3), limit=MAX_LATE_SHARE)
            self._late.clear()
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
