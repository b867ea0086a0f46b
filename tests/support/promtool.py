"""Prometheus' own tool for rules, where there is one."""

import shutil
import subprocess

import pytest
from cluster import places


def promtool(*arguments: str) -> str:
    """Run promtool and return its output. The test fails if promtool finds a fault, and is skipped
    where promtool is not built."""
    command = shutil.which("promtool", path=places.binaries()) or shutil.which("promtool")
    if command is None:
        pytest.skip("promtool comes with the test clusters' binaries, which are not built")
    ended = subprocess.run([command, *arguments], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
