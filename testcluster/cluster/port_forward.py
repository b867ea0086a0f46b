"""`kubectl port-forward`, which reaches a pod of any cluster."""

import socket
from collections.abc import Sequence
from pathlib import Path

from cluster import ports
from cluster.processes import Process, wait_until

_ADDRESS = "127.0.0.1"
_START_S = 30.0


class PortForward:
    """A local port that is forwarded to a pod's port. Raises ClusterError with kubectl's output if
    the start fails."""

    def __init__(
        self, kubectl_command: Sequence[str | Path], namespace: str, pod: str, port: int, log: Path
    ) -> None:
        (self._port,) = ports.free(_ADDRESS, 1)
        options = (f"--namespace={namespace}", f"--address={_ADDRESS}")
        self._process = Process(
            f"port-forward to {pod}",
            [*kubectl_command, "port-forward", *options, f"pod/{pod}", f"{self._port}:{port}"],
            log,
        )
        try:
            wait_until(self._is_open, f"{pod} is reached", _START_S, [self._process])
        except BaseException:
            self.stop()
            raise

    @property
    def address(self) -> str:
        """Return the local address, like ``127.0.0.1:8000``."""
        return f"{_ADDRESS}:{self._port}"

    @property
    def is_running(self) -> bool:
        return self._process.is_running

    def stop(self) -> None:
        self._process.stop()

    def _is_open(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((_ADDRESS, self._port)) == 0
