"""Descendants of a process that adopts orphans are found and ended."""

import os
import subprocess
import sys

import psutil

# The shell in between ends at once, and leaves its sleeper an orphan in a session of its own.
LEAVES = """
import subprocess, sys, time
from macroserve.local.process_tree import adopt_orphans, descendants, end_descendants, reap_orphans
adopt_orphans()
subprocess.run(["sh", "-c", "setsid sleep 300 & setsid sleep 300 &"], check=True)
waited_for = subprocess.Popen(["sleep", "300"])
while len(descendants()) < 3:
    time.sleep(0.01)
print(*descendants(), flush=True)
"""


def run(script: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", LEAVES + script]
    return subprocess.check_output(command, env=environment, text=True, timeout=60).splitlines()


def test_process_tree_ends_all_descendants_and_orphans() -> None:
    pids, left, after = run("print(end_descendants()); print(descendants())")
    assert len(pids.split()) == 3
    assert left == "set()"
    # The one that has a Popen may still have to be waited for.
    assert after == "{}" or after.count("'Z'") == after.count(":")
    assert not any(psutil.pid_exists(int(pid)) for pid in pids.split())


def test_reaped_orphans_are_forgotten_but_for_the_one_to_keep() -> None:
    script = """
import os, signal
for pid in descendants():
    os.kill(pid, signal.SIGKILL)
while set(descendants().values()) != {"Z"}:
    time.sleep(0.01)
reap_orphans(keep=waited_for.pid)
print(list(descendants()) == [waited_for.pid], waited_for.wait())
"""
    assert run(script)[-1] == "True -9"
