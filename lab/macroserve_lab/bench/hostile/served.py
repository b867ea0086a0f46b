"""``macroserve up`` in a separate process, for hostile clients."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from macroserve_lab.bench.ports import free_port
from macroserve_lab.bench.up_log import num_serving

MODEL = "tiny-llama"
READY_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.5

ENGINES: Mapping[str, dict[str, Any]] = {
    "emulated": {"type": "Emulated", "kvCacheMemory": "8GiB"},
    "vllm": {"type": "vLLM", "dtype": "float32", "kvCacheMemory": "128MiB", "maxBatchTokens": 512},
}


@dataclass(frozen=True, slots=True)
class Served:
    """A deployment with an API at the base URL ``endpoint`` and its output in ``log``."""

    endpoint: str
    process: psutil.Process
    log: Path

    @property
    def completions(self) -> str:
        return self.endpoint + "/v1/completions"

    def pids(self, title: str) -> set[int]:
        """Return the processes of the deployment with ``title`` in their command line."""
        found: set[int] = set()
        for process in self.process.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if title in " ".join(process.cmdline()):
                    found.add(process.pid)
        return found

    def engines(self) -> set[int]:
        return self.pids("local.process instance-")

    @property
    def num_serving(self) -> int:
        """Return the number of serving instances."""
        return num_serving(self.log)

    def ingress_mb(self) -> float:
        """Return the memory of the largest ingress replica with its workers, which share pages."""
        return max((_tree_mb(pid) for pid in self.pids("local.process ingress-")), default=0.0)


@asynccontextmanager
async def served(
    engine: str, instances: int, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Served]:
    """Serve a deployment of one of ENGINES with one ingress until left. Raises RuntimeError with
    the end of the log if it does not become ready.

    environment: further variables for all of the deployment's processes.
    """
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        log = Path(folder, "log")
        process = _start(Path(folder), log, port, _manifest(engine, instances), environment or {})
        try:
            deployment = Served(f"http://127.0.0.1:{port}", psutil.Process(process.pid), log)
            await _ready(deployment.endpoint, process, log, instances)
            yield deployment
        finally:
            await asyncio.to_thread(_stop, process)


def _start(
    folder: Path, log: Path, port: int, manifest: dict[str, Any], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    path = folder / "manifest.json"
    path.write_text(json.dumps(manifest))
    with log.open("wb") as output:
        return subprocess.Popen(
            [
                *(sys.executable, "-c", "from macroserve.cli.entry import main; main()"),
                *("up", "-f", str(path), "--port", str(port)),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "XDG_STATE_HOME": str(folder), **environment},
        )


async def _ready(
    endpoint: str, process: subprocess.Popen[bytes], log: Path, instances: int
) -> None:
    """Wait until every instance serves."""
    async with aiohttp.ClientSession() as http:
        for _ in range(round(READY_TIMEOUT_S / POLL_S)):
            if process.poll() is not None:
                break
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get(endpoint + "/ready") as response:
                    if response.status == 200 and num_serving(log) >= instances:
                        return
            await asyncio.sleep(POLL_S)
    raise RuntimeError(f"the deployment is not ready:\n{_text(log)[-2000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _text(log: Path) -> str:
    return log.read_text(errors="replace")


def _manifest(engine: str, instances: int) -> dict[str, Any]:
    return {
        "apiVersion": "macroserve.io/v1alpha1",
        "kind": "MacroInstance",
        "metadata": {"name": f"hostile-{engine}"},
        "spec": {
            "model": {"source": "tiny", "servedName": MODEL, "maxModelLen": 2048},
            "engine": ENGINES[engine],
            "slo": {"ttft": "2s", "tpot": "100ms"},
            "instances": instances,
            "mitosis": {"lowerBound": 1, "upperBound": max(1, instances)},
            "priority": {"highPriorityRatio": 0},
            "ingress": {"replicas": 1},
        },
    }


def _tree_mb(pid: int) -> float:
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for part in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += part.memory_full_info().pss
    return total / 2**20
