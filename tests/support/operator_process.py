"""The operator as a local process, with its container's command."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
from cluster import ports
from world.waiting import eventually

_T = TypeVar("_T")

COMMAND = (sys.executable, "-m", "kopf", "run", "-A", "-m", "macroserve.operator.handlers")
IMAGE = "registry.local/engine:test"


@dataclass
class OperatorProcess:
    """The operator as a process that ends with the context. `env` is added to its environment."""

    kubeconfig: Path
    folder: Path
    name: str = "operator-0"
    env: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> "OperatorProcess":
        self.metrics_port, self.alerts_port, self.liveness_port = ports.free("127.0.0.1", 3)
        env = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "MACROSERVE_ENGINE_IMAGE": IMAGE,
            "MACROSERVE_METRICS_PORT": str(self.metrics_port),
            "MACROSERVE_ALERTS_PORT": str(self.alerts_port),
            "POD_NAME": self.name,
            "POD_NAMESPACE": "default",
            **self.env,
        }
        liveness = f"http://127.0.0.1:{self.liveness_port}/healthz"
        self._log = (self.folder / f"{self.name}.log").open("w+")
        self._process = subprocess.Popen(
            [*COMMAND, f"--liveness={liveness}", "--log-format=json"],
            env=env,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(30)
        self._log.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def log(self) -> str:
        return (self.folder / f"{self.name}.log").read_text()

    @property
    def leads(self) -> bool:
        return "macroserve_operator_leader 1.0" in self.metrics

    @property
    def metrics(self) -> str:
        """Return the metrics page, or an empty text while the operator does not answer."""
        return self._get(self.metrics_port, "/metrics")

    @property
    def lives(self) -> bool:
        return bool(self._get(self.liveness_port, "/healthz"))

    def _get(self, port: int, path: str) -> str:
        try:
            return httpx.get(f"http://127.0.0.1:{port}{path}").raise_for_status().text
        except httpx.HTTPError:
            return ""


def wait_for(condition: Callable[[], _T], what: str, timeout_s: float = 20.0) -> _T:
    """Return the first true value of the condition."""
    return eventually(condition, timeout_s, describe=lambda: what, every_s=0.05)


def emulated(name: str, instances: int = 3, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "macroserve.io/v1alpha1",
        "kind": "MacroInstance",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": "tiny", "maxModelLen": 2048},
            "engine": {"type": "Emulated"},
            "slo": {"ttft": "2s", "tpot": "100ms"},
            "instances": instances,
            "mitosis": {"lowerBound": 2, "upperBound": 4},
            **spec,
        },
    }
