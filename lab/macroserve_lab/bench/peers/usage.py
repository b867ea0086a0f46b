"""CPU time and memory of a deployment's processes, engines separately (Linux only)."""

import os
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

ENGINE_NAMES = ("VLLM::EngineCor", "VLLM::Worker")
"""Prefixes of the names that vLLM gives to engine processes, also in Macroserve; Linux keeps 15
characters."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class _Process(NamedTuple):
    pid: int
    parent: int
    name: str
    own_ticks: int
    """CPU time of the process itself."""
    reaped_ticks: int
    """CPU time of its ended children."""
    rss_bytes: int

    @property
    def is_engine(self) -> bool:
        return self.name.startswith(ENGINE_NAMES)


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of all descendants of a process up to now."""

    num_engines: int = 0
    """Processes of engines; an engine may have several."""
    engine_cpu_s: float = 0.0
    other_cpu_s: float = 0.0
    """CPU seconds of all processes except engines', and of their ended children."""
    engine_rss_bytes: int = 0
    other_rss_bytes: int = 0

    @classmethod
    def below(cls, pid: int, proc: Path = Path("/proc")) -> Self:
        """Return the usage of the descendants of ``pid``, without that process itself."""
        children: defaultdict[int, list[_Process]] = defaultdict(list)
        for process in _processes(proc):
            children[process.parent].append(process)
        found: list[_Process] = []
        parents = [pid]
        while parents:
            below = children[parents.pop()]
            found += below
            parents += [process.pid for process in below]
        engines = [process for process in found if process.is_engine]
        others = [process for process in found if not process.is_engine]
        return cls(
            len(engines),
            sum(each.own_ticks for each in engines) / _TICKS_PER_S,
            sum(each.own_ticks + each.reaped_ticks for each in others) / _TICKS_PER_S,
            sum(each.rss_bytes for each in engines),
            sum(each.rss_bytes for each in others),
        )


def _processes(proc: Path) -> list[_Process]:
    found: list[_Process] = []
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with suppress(OSError, ValueError):  # the process has ended meanwhile
                found.append(_parse(int(folder.name), (folder / "stat").read_text()))
    return found


def _parse(pid: int, stat: str) -> _Process:
    """Return the process of a line of ``/proc/PID/stat`` (proc_pid_stat(5))."""
    # The name may hold spaces and parentheses.
    head, _, tail = stat.rpartition(")")
    fields = tail.split()
    user, system, reaped_user, reaped_system = map(int, fields[11:15])
    return _Process(
        pid,
        int(fields[1]),
        head.partition("(")[2],
        user + system,
        reaped_user + reaped_system,
        int(fields[21]) * _PAGE,
    )
