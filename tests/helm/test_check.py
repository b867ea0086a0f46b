"""The chart's test fails without an answer; e2e tests cover its success."""

import os
import subprocess
import sys

from support.chart import CHART


def test_check_without_an_answer_fails() -> None:
    # A local address without listening ports.
    env = {**os.environ, "OPERATOR_HOST": "127.77.77.77"}
    ended = subprocess.run(
        [sys.executable, CHART / "files" / "check.py"], env=env, capture_output=True, text=True
    )
    assert ended.returncode == 1
    lines = ended.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("FAIL ") for line in lines), lines
