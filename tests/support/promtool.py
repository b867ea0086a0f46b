"""Prometheus' tool for rules, if it is built."""

import shutil
import subprocess

import pytest
from cluster import places


def promtool(*arguments: str) -> str:
    """Run promtool and return its output; fail the test if promtool reports an error, and skip it
    without promtool."""
    command = shutil.which("promtool", path=places.binaries()) or shutil.which("promtool")
    if command is None:
        pytest.skip("promtool comes with the test clusters' binaries, which are not built")
    ended = subprocess.run([command, *arguments], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
