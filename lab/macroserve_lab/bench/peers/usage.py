"""CPU time and memory of a deployment's processes, engines separately (Linux only).

An instance of Macroserve serves its ingresses in its engine's process, in threads that it names.
Their CPU time counts as the deployment's. The rest of the process's CPU time counts as the
engine's, and so does its memory, which is mostly the model's.
"""

import os
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from macroserve.serving.instance import token_process

ENGINE_NAMES = ("VLLM::EngineCor", "VLLM::Worker")
"""Prefixes of the names that vLLM gives to engine processes, also in Macroserve to workers; Linux
keeps 15 characters."""
TOKEN_PROCESS = token_process.__name__
"""Argument of the process of an instance's engine."""
SERVING_THREAD = "server"
"""Name of its threads that serve ingresses: a thread begins with the name of the one that starts
it. The thread that prepares prompts belongs to the engine, as in vLLM."""

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
    serving_ticks: int | None = None
    """CPU time of the threads that serve ingresses, in the process of an instance's engine."""

    @property
    def is_engine(self) -> bool:
        return self.name.startswith(ENGINE_NAMES) or self.serving_ticks is not None


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of all descendants of a process up to now."""

    num_engines: int = 0
    """Processes of engines; an engine may have several."""
    engine_cpu_s: float = 0.0
    other_cpu_s: float = 0.0
    """CPU seconds of all processes except engines', and of their ended children; and of threads
    that serve ingresses in an engine's process."""
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
        serving_ticks = sum(each.serving_ticks or 0 for each in engines)
        own_ticks = sum(each.own_ticks for each in engines)
        other_ticks = sum(each.own_ticks + each.reaped_ticks for each in others)
        return cls(
            len(engines),
            (own_ticks - serving_ticks) / _TICKS_PER_S,
            (other_ticks + serving_ticks) / _TICKS_PER_S,
            sum(each.rss_bytes for each in engines),
            sum(each.rss_bytes for each in others),
        )


def _processes(proc: Path) -> list[_Process]:
    return [_with_threads(process, proc / str(process.pid)) for process in _stats(proc)]


def _stats(proc: Path) -> list[_Process]:
    """Return the processes of a folder like /proc, or the threads of one like /proc/PID/task."""
    found: list[_Process] = []
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with suppress(OSError, ValueError):  # it has ended meanwhile
                found.append(_parse(int(folder.name), (folder / "stat").read_text()))
    return found


def _with_threads(process: _Process, folder: Path) -> _Process:
    with suppress(OSError):  # it has ended meanwhile
        if TOKEN_PROCESS in (folder / "cmdline").read_text().split("\0"):
            threads = _stats(folder / "task")
            serving = [each.own_ticks for each in threads if each.name.startswith(SERVING_THREAD)]
            # Without such a thread, nothing tells the engine from the rest.
            return process._replace(serving_ticks=sum(serving)) if serving else process
    return process


def _parse(pid: int, stat: str) -> _Process:
    """Return the process or thread of a line of ``/proc/PID/stat`` (proc_pid_stat(5))."""
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
