"""``macroserve up`` as a person runs it: a process, a manifest file, a port of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml
from cluster import ports
from support.processes import descendants
from world.waiting import eventually

from macroserve.local.state import RunningDeployment

MACROSERVE = [sys.executable, "-c", "from macroserve.cli.entry import main; main()"]


def manifest(**spec: Any) -> dict[str, Any]:
    """A MacroInstance of three emulated instances, changed by ``spec``'s entries."""
    return {
        "apiVersion": "macroserve.io/v1alpha1",
        "kind": "MacroInstance",
        "metadata": {"name": "test"},
        "spec": {
            "model": {"source": "tiny", "servedName": "tiny-llama", "maxModelLen": 2048},
            "engine": {"type": "Emulated", "kvCacheMemory": "8GiB"},
            "slo": {"ttft": "2s", "tpot": "100ms"},
            "instances": 3,
            "mitosis": {"lowerBound": 2, "upperBound": 4},
            "priority": {"highPriorityRatio": 0.33},
            **spec,
        },
    }


def free_port() -> int:
    (port,) = ports.free("127.0.0.1", 1)
    return port


class Up:
    """A running deployment."""

    def __init__(self, folder: Path, document: dict[str, Any], *options: str) -> None:
        self.folder = folder
        self.manifest_path = folder / "manifest.yaml"
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.env = {
            **os.environ,
            "XDG_STATE_HOME": str(folder / "state"),
            "COLUMNS": "200",
            # As if other programs had filled the memory.
            "RAY_memory_usage_threshold": "0.05",
        }
        self.lines: list[str] = []
        self.write(document)
        self.process = subprocess.Popen(
            [*MACROSERVE, "up", "-f", str(self.manifest_path), "--port", str(self.port), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.env,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def write(self, document: dict[str, Any]) -> None:
        self.manifest_path.write_text(yaml.safe_dump(document))

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, condition: Callable[[], object], timeout_s: float = 120) -> Any:
        """The condition's first true value; an answer that comes late is none yet."""

        def holds() -> object:
            try:
                return condition()
            except httpx.TimeoutException:
                return None

        return eventually(
            lambda: holds() or self._still_runs(), timeout_s, describe=lambda: self.log
        )

    def _still_runs(self) -> None:
        assert self.process.poll() is None, f"the deployment ended:\n{self.log}"

    def wait_for_line(self, pattern: str, timeout_s: float = 120, *, after: int = 0) -> str:
        """Return the first line with the pattern that comes after so many others."""

        def found() -> str | None:
            return next((line for line in self.lines[after:] if re.search(pattern, line)), None)

        return self.wait_for(found, timeout_s)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*MACROSERVE, *arguments], env=self.env, capture_output=True, text=True, timeout=60
        )

    @property
    def state(self) -> RunningDeployment:
        path = self.folder / "state" / "macroserve" / "test.json"
        return RunningDeployment(**json.loads(path.read_text()))

    def report(self) -> list[dict[str, Any]]:
        """The cells, as the admin API reports them."""
        headers = {"Authorization": f"Bearer {self.state.admin_token}"}
        response = httpx.get(self.state.private + "/admin/v1/report", headers=headers, timeout=10)
        response.raise_for_status()
        return response.json()["cells"]

    def cells(self) -> dict[str, list[str]]:
        return {
            report["cell"]["name"]: sorted(i["name"] for i in report["instances"])
            for report in self.report()
        }

    def instances(self) -> dict[str, dict[str, Any]]:
        return {i["name"]: i for report in self.report() for i in report["instances"]}

    def processes(self, title: str) -> list[psutil.Process]:
        """Return the deployment's processes whose title contains ``title``."""
        return descendants(self.process.pid, title)

    def metrics(self) -> dict[str, float]:
        """Sums over all label values, by metric name."""
        sums: dict[str, float] = {}
        for line in httpx.get(self.state.private + "/metrics", timeout=10).text.splitlines():
            if not line.startswith("#"):
                name = re.split(r"[ {]", line)[0]
                sums[name] = sums.get(name, 0) + float(line.rsplit(" ", 1)[1])
        return sums

    def read_to_end(self) -> None:
        """Wait until ``lines`` holds all that an ended deployment printed."""
        self._reader.join(10)

    def stop(self) -> list[psutil.Process]:
        """Ctrl-C; the processes that are still there afterwards."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        self.read_to_end()
        _, alive = psutil.wait_procs(children, timeout=5)
        return alive


@contextmanager
def running(folder: Path, document: dict[str, Any], *options: str) -> Iterator[Up]:
    """Ready when entered."""
    up = Up(folder, document, *options)
    try:
        # Three engines start within a minute on an idle machine, within several beside other work.
        up.wait_for_line(r"Ready\.", timeout_s=280)
        up.wait_for(lambda: len(up.instances()) == document["spec"]["instances"])
        yield up
    finally:
        if up.process.poll() is None:
            alive = up.stop()
            for process in alive:
                process.kill()
            assert not alive, f"left behind: {alive}"
