"""Child processes that end with this one, even if it is killed."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cluster.errors import ClusterError

_STOP_S = 5.0
_LOG_TAIL_BYTES = 2000


class Process:
    """A running program with its output in a log file.

    The kernel kills it when the thread that started it ends (`setpriv --pdeathsig`), so even a
    killed test run leaves none. It does not get Ctrl-C; its owner stops it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | environment if environment else None,
                cwd=directory,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        self._popen.kill()
        self.wait()

    def stop(self) -> None:
        """Terminate the process; kill it after a time limit."""
        self._popen.terminate()
        try:
            self._popen.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def wait(self) -> None:
        """Wait until the process has ended."""
        self._popen.wait()

    def check(self) -> None:
        """Raise ClusterError with the end of the log if the process has ended."""
        if not self.is_running:
            tail = self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
            raise ClusterError(f"{self.name} ended with {self._popen.returncode}:\n{tail}")


def children(pid: int) -> list[int]:
    """Return the process ids of the children of a process's first thread."""
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except FileNotFoundError:
        return []


def run(
    *command: str, directory: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Run a command; return its output. Raises ClusterError with the output's end if it fails."""
    settings = {**os.environ, **environment} if environment else None
    ended = subprocess.run(command, cwd=directory, env=settings, text=True, capture_output=True)
    if ended.returncode:
        words = (ended.stdout + ended.stderr)[-4000:]
        raise ClusterError(f"{' '.join(command[:3])} failed:\n{words}")
    return ended.stdout


def wait_until(
    condition: Callable[[], bool],
    what: str,
    timeout_s: float,
    processes: Sequence[Process] = (),
    every_s: float = 0.05,
) -> None:
    """Wait for a condition. Raises ClusterError at the time limit, or when one of `processes` has
    ended."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        for process in processes:
            process.check()
        if time.monotonic() > give_up:
            logs = "".join(f"\n{process.name}'s log: {process.log}" for process in processes)
            raise ClusterError(f"not within {timeout_s:.0f} s: {what}{logs}")
        time.sleep(every_s)
