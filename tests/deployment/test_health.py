"""A part of an instance that hangs is told from one that only looks so: the engine, the server, or
both."""

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.deployment import manifest
from support.pods import PORT, Pods, running
from support.processes import descendants
from world.traffic import Traffic

from macroserve.core.health import MIN_BOUND_S

pytestmark = pytest.mark.integration

BLOCKED_S = round(MIN_BOUND_S) - 4
SERVER_MODULE = "macroserve.serving.instance.token_process"

# Holds the server's process for a while, by a C call that does not let go of Python's lock, so that
# no thread of it runs either.
BLOCKS = f"""
import ctypes, os, threading, time
def wait():
    flag = os.environ["BLOCK_FLAG"]
    while not os.path.exists(flag):
        time.sleep(0.1)
    os.unlink(flag)
    ctypes.PyDLL(None).sleep({BLOCKED_S})
import sys
if "{SERVER_MODULE}" in sys.orig_argv:
    threading.Thread(target=wait, daemon=True).start()
"""


@pytest.fixture(scope="module")
def blocker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for Python's path; the file whose appearance blocks one server."""
    folder = tmp_path_factory.mktemp("blocker")
    (folder / "sitecustomize.py").write_text(BLOCKS)
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(folder))
    patch.setenv("BLOCK_FLAG", str(folder / "block"))
    yield folder / "block"
    patch.undo()


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory, blocker: Path) -> Iterator[Pods]:
    document = manifest(instances=2, scheduling={"strategy": "vllm"})
    with running(tmp_path_factory.mktemp("pods"), document, ingresses=1, instances=2) as deployment:
        yield deployment


def load(pods: Pods, num_tokens: int = 60) -> Traffic:
    return Traffic(f"http://{pods.pods['ingress-0'].address}:{PORT}", 20, num_tokens)


def num_running(pods: Pods, name: str) -> int:
    """Return the running requests of an instance; none if its cell does not know it now."""
    found = pods.instances().get(name)
    return found["status"]["num_running"] if found else 0


def server_of(pods: Pods, name: str) -> psutil.Process:
    (server,) = descendants(pods.pods[name].process.pid, SERVER_MODULE)
    return server


def test_blocked_server_is_not_taken_for_dead(pods: Pods, blocker: Path) -> None:
    before = {name: pod.process.pid for name, pod in pods.pods.items()}
    with load(pods, 40) as traffic:
        traffic.after(20)
        blocker.touch()
        pods.wait_for(lambda: not blocker.exists())
        began = time.monotonic()
        while time.monotonic() - began < BLOCKED_S - 2:
            assert pods.works(0) and pods.works(1)
            assert set(pods.instances()) == {"instance-0", "instance-1"}
            time.sleep(0.5)
        traffic.after(50)
    assert traffic.failures == []
    assert {name: pod.process.pid for name, pod in pods.pods.items()} == before
    assert all(pod.process.poll() is None for pod in pods.pods.values())


def test_stopped_server_ends_its_instance_and_its_streams_go_on_elsewhere(pods: Pods) -> None:
    with load(pods, 200) as traffic:
        pods.wait_for(lambda: num_running(pods, "instance-0"))
        server_of(pods, "instance-0").suspend()
        assert pods.pods["instance-0"].process.wait(60) == 1
        traffic.after(30)
        assert pods.instances().keys() == {"instance-1"}
        pods.start_instance(0)
        pods.wait_for(lambda: pods.works(0))
        pods.adopt(0)
        pods.wait_for(lambda: num_running(pods, "instance-0"))
    assert traffic.failures == []


def test_killed_server_ends_its_instance_with_the_cause(pods: Pods) -> None:
    with load(pods) as traffic:
        traffic.after(20)
        server_of(pods, "instance-0").kill()
        pod = pods.pods["instance-0"]
        assert pod.process.wait(30) == 1
        traffic.after(20)
    assert traffic.failures == []
    last = pod.log.splitlines()[-1]
    assert last == ("error: instance-0 has ended: its server's process was killed (SIGKILL)")
