"""Child processes end when they should, and errors of others show why they ended."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import ClusterError
from cluster.processes import Process, children, wait_until

TESTCLUSTER = Path(__file__).parents[1]
LONG = ["sleep", "100"]


def is_there(pid: int) -> bool:
    """Return whether the process runs; zombies do not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_killed_process_is_gone(tmp_path: Path) -> None:
    process = Process("sleeper", LONG, tmp_path / "log")
    assert process.is_running
    process.kill()
    assert not process.is_running
    assert not is_there(process.pid)


def test_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
    process = Process("deaf", [sys.executable, "-c", f"{script}; time.sleep(100)"], log)
    wait_until(lambda: log.read_text() != "", "it is deaf", 10, [process])
    process.stop()
    assert not is_there(process.pid)


def test_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from cluster.processes import Process;"
        f"process = Process('sleeper', {LONG}, Path(sys.argv[1]));"
        "print(process.pid, flush=True); time.sleep(100)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "log")],
        env={"PYTHONPATH": str(TESTCLUSTER), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
    )
    assert owner.stdout is not None
    with owner.stdout as told:
        pid = int(told.readline())
    wait_until(
        lambda: Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep"), "it sleeps", 10
    )
    owner.kill()
    owner.wait()
    wait_until(lambda: not is_there(pid), "it is gone", 10)


def test_process_that_has_ended_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo no such file; exit 3"]
    process = Process("reader", command, tmp_path / "log")
    with pytest.raises(ClusterError, match=r"(?s)reader ended with 3.*no such file"):
        wait_until(lambda: False, "never", 10, [process])


def test_wait_until_never_true_ends_in_time(tmp_path: Path) -> None:
    process = Process("sleeper", LONG, tmp_path / "log")
    began = time.monotonic()
    with pytest.raises(ClusterError, match="the moon is full"):
        wait_until(lambda: False, "the moon is full", 0.01, [process], every_s=0.001)
    assert time.monotonic() - began < 5
    process.kill()


def test_process_environment_gets_the_variables_added(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = Process("printer", ["sh", "-c", "echo $NEW $PATH"], log, {"NEW": "value"})
    process.wait()
    new, path = log.read_text().split()
    assert (new, "/" in path) == ("value", True)


def test_children_of_an_ended_process_are_none() -> None:
    assert children(2**22 + 1) == []
