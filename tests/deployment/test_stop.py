"""Ctrl-C in every phase of a start: when the last line is there, every process has ended."""

import signal
import time
from pathlib import Path

import psutil
import pytest
from support.deployment import Up, manifest

pytestmark = pytest.mark.integration

STOPPED = "Stopped: every process has ended"


def runs(process: psutil.Process) -> bool:
    """Return whether a process has not ended; init may reap one that has a moment later."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("phase", "then_s"),
    [
        ("Model", 0.0),
        ("Model", 1.5),
        ("Ray and Ray Serve are up", 0.0),
        ("Cell scheduler", 0.0),
        ("Cell scheduler", 2.0),
        (r"Ready\.", 0.0),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGINT])
def test_stopped_start_leaves_no_process(
    tmp_path: Path, phase: str, then_s: float, number: signal.Signals
) -> None:
    cells = {"lowerBound": 1, "upperBound": 4}
    up = Up(tmp_path, manifest(instances=1, mitosis=cells, ingress={"replicas": 1}))
    try:
        up.wait_for_line(phase)
        time.sleep(then_s)
        children = psutil.Process(up.process.pid).children(recursive=True)
        up.process.send_signal(number)
        up.process.wait(30)
        left = [process for process in children if runs(process)]
        up.read_to_end()
    finally:
        up.process.kill()
    assert not left
    assert STOPPED in up.lines[-1]
    assert "Traceback" not in up.log
    assert up.process.returncode == 0
