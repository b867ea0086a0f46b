"""CPU time and memory of process trees, read from a /proc of files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from macroserve_lab.bench.peers.usage import TOKEN_PROCESS, Usage

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Proc:
    """A fake /proc with a ``stat`` and a command line per process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self,
        pid: int,
        parent: int,
        name: str,
        cpu_s: tuple[float, float] = (0, 0),
        reaped_s: float = 0.0,
        pages: int = 0,
    ) -> None:
        _write(self.folder / str(pid), parent, name, cpu_s, reaped_s, pages)
        (self.folder / str(pid) / "cmdline").write_text(f"{name}\0")

    def add_instance(self, pid: int, parent: int, *threads: tuple[str, float]) -> None:
        """Add a process of an instance's engine, with the name and CPU seconds of each thread."""
        cpu_s = sum(cpu_s for _, cpu_s in threads)
        self.add(pid, parent, "python3", (cpu_s, 0), pages=1000)
        (self.folder / str(pid) / "cmdline").write_text(f"python3\0-m\0{TOKEN_PROCESS}\0" + "5\0")
        for thread, (name, thread_s) in enumerate(threads, pid):
            _write(self.folder / str(pid) / "task" / str(thread), parent, name, (thread_s, 0))


def _write(
    folder: Path,
    parent: int,
    name: str,
    cpu_s: tuple[float, float],
    reaped_s: float = 0.0,
    pages: int = 0,
) -> None:
    fields = ["0"] * 50
    fields[0], fields[1] = "S", str(parent)
    user, system = (str(int(each * TICKS)) for each in cpu_s)
    fields[11:15] = [user, system, str(int(reaped_s * TICKS)), "0"]
    fields[21] = str(pages)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{folder.name} ({name}) {' '.join(fields)}\n")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    (tmp_path / "meminfo").write_text("not a process")
    return Proc(tmp_path)


def test_usage_tells_engines_from_others_at_any_depth(proc: Proc) -> None:
    proc.add(10, 1, "bench", (100, 0))  # this process itself does not count
    proc.add(11, 10, "python3", (1, 0.5), pages=100)
    proc.add(12, 11, "VLLM::EngineCor", (7, 1), pages=1000)
    proc.add(13, 12, "VLLM::Worker", (20, 2), pages=2000)
    proc.add(14, 10, "vllm-router", (0.25, 0.25), pages=10)
    proc.add(15, 1, "stranger", (50, 50), pages=5000)
    assert Usage.below(10, proc.folder) == Usage(
        num_engines=2,
        engine_cpu_s=30.0,
        other_cpu_s=2.0,
        engine_rss_bytes=3000 * PAGE,
        other_rss_bytes=110 * PAGE,
    )


def test_vllms_own_api_server_is_no_engine(proc: Proc) -> None:
    proc.add(11, 10, "VLLM::APIServer", (1, 0))
    assert Usage.below(10, proc.folder) == Usage(other_cpu_s=1.0)


def test_threads_that_serve_ingresses_are_not_their_engines(proc: Proc) -> None:
    threads = [("python3", 20.0), ("server", 3.0), ("server", 0.5), ("inputs", 1.0)]
    proc.add(11, 10, "python3", (2, 0), pages=100)
    proc.add_instance(20, 11, *threads, ("python3", 5.0))
    # What has been counted for threads that have ended since is the engine's.
    (proc.folder / "20" / "task" / "22" / "stat").unlink()
    assert Usage.below(10, proc.folder) == Usage(
        num_engines=1,
        engine_cpu_s=26.5,
        other_cpu_s=5.0,
        engine_rss_bytes=1000 * PAGE,
        other_rss_bytes=100 * PAGE,
    )


def test_instance_whose_threads_have_no_names_counts_as_the_deployments_own(proc: Proc) -> None:
    proc.add_instance(20, 10, ("python3", 20.0), ("python3", 3.0))
    found = Usage.below(10, proc.folder)
    assert (found.num_engines, found.engine_cpu_s, found.other_cpu_s) == (0, 0.0, 23.0)


def test_children_that_have_ended_count_with_their_parent(proc: Proc) -> None:
    proc.add(11, 10, "python3", (1, 0), reaped_s=3.0)
    assert Usage.below(10, proc.folder).other_cpu_s == 4.0


def test_names_with_spaces_and_parentheses_are_read(proc: Proc) -> None:
    proc.add(11, 10, "a (b) c) d", (2, 0))
    assert Usage.below(10, proc.folder).other_cpu_s == 2.0


def test_processes_that_end_meanwhile_are_left_out(proc: Proc) -> None:
    (proc.folder / "12").mkdir()
    proc.add(11, 10, "python3", (2, 0))
    assert Usage.below(10, proc.folder).other_cpu_s == 2.0


def test_usage_of_no_descendants_is_nothing(proc: Proc) -> None:
    proc.add(10, 1, "bench", (100, 0))
    assert Usage.below(10, proc.folder) == Usage()


def test_usage_of_the_real_proc_sees_a_child() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = Usage.below(os.getpid())
        child.communicate(b"\n")
    assert found.other_rss_bytes > 0
    assert found.num_engines == 0


SERVES = """
import threading, time

def serve():
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as name:
        name.write("server")
    threading.Thread(target=work).start()

def work():
    while time.thread_time() < 0.5:
        pass
    print("served", flush=True)
    input()

threading.Thread(target=serve).start()
"""


def test_usage_of_the_real_proc_sees_a_thread_that_serves() -> None:
    """The thread has the name of the one that started it."""
    command = [sys.executable, "-c", SERVES, TOKEN_PROCESS]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = Usage.below(os.getpid())
        child.communicate(b"\n")
    assert found.num_engines == 1
    assert found.other_cpu_s > 0.4
    assert found.engine_rss_bytes > 0
