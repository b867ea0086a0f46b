"""A machine inside this one, with separate mount, network and process namespaces.

Its first process ends with this process, and then the kernel ends all of the machine's processes
and removes mounts, links and rules, so nothing has to be cleaned up. /run, /var/lib and /var/log
are separate; all other folders are shared with this machine.
"""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from cluster.errors import ClusterError
from cluster.processes import Process, children, wait_until

_OWN = ("/run", "/var/lib", "/var/log")
_START_S = 10.0
_PATH = "/run/cluster/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Machine:
    """A machine. `state`: parent of its folders; `logs`: folder for its processes' output."""

    def __init__(self, name: str, state: Path, logs: Path) -> None:
        self.name = name
        self._state = state
        self._logs = logs
        self._first: Process | None = None
        self.pid = 0
        """Process id of the first process, outside."""

    def folder(self, path: str) -> Path:
        """Create the machine's `path`, in one of its separate folders; return its path outside."""
        folder = self._state / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def start(self, first_process: Path) -> None:
        """Start the machine. `first_process` must wait for children forever; see files/pause.go."""
        if any(self._state.is_relative_to(path) for path in _OWN):
            raise ClusterError(f"{self._state} is in a folder that nodes have themselves: {_OWN}")
        command = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        outer = self._process("init", [*command, first_process])
        self._first = outer

        def is_up() -> bool:
            # unshare's child has a separate /proc before it becomes the first process.
            comms = [Path(f"/proc/{pid}/comm").read_text() for pid in children(outer.pid)]
            return comms == [f"{first_process.name}\n"]

        wait_until(is_up, f"{self.name} has a first process", _START_S, [outer], every_s=0.01)
        (self.pid,) = children(outer.pid)

    def bind(self, source: Path, target: str, *options: str) -> None:
        """Bind the outside path `source` to the machine's path `target`."""
        self.call("mount", "--rbind", *options, str(source), target)

    def bind_own_folders(self) -> None:
        """Bind the machine's separate folders, with the mounts below them."""
        for path in _OWN:
            self.bind(self.folder(path), path)
        # Containers may ask for mount propagation.
        self.call("mount", "--make-rshared", "/")

    def call(self, *command: str, stdin: IO[bytes] | None = None) -> str:
        """Run a command in the machine; return its output. Raises ClusterError if it fails."""
        ended = subprocess.run(
            [*self._enter, *command],
            stdin=stdin or subprocess.DEVNULL,
            capture_output=True,
            env=os.environ | {"PATH": _PATH},
        )
        if ended.returncode:
            reason = ended.stderr.decode(errors="replace")
            raise ClusterError(f"{command[0]} failed on {self.name}: {reason}")
        return ended.stdout.decode()

    def run(self, name: str, command: Sequence[str]) -> "InsideProcess":
        log = self._logs / f"{self.name}-{name}.log"
        tied = ["setpriv", "--pdeathsig", "KILL", "--", *command]
        return InsideProcess(f"{self.name}'s {name}", [*self._enter, *tied], log, {"PATH": _PATH})

    def stop(self) -> None:
        """Stop the machine and all its processes."""
        if self._first is not None:
            self._first.kill()
            self._first = None

    @property
    def _enter(self) -> list[str]:
        return ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid", "--"]

    def _process(self, name: str, command: Sequence[str | Path]) -> Process:
        return Process(f"{self.name}'s {name}", command, self._logs / f"{self.name}-{name}.log")


class InsideProcess(Process):
    """A process outside that waits for its child inside the machine."""

    def kill(self) -> None:
        """Kill the process; return when the child has ended and its ports are free."""
        for child in children(self.pid):
            os.kill(child, signal.SIGKILL)
        self.wait()
