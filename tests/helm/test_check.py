"""The chart's own test says no when nothing answers; that it says yes is seen in e2e."""

import os
import subprocess
import sys

from support.chart import CHART


def test_check_without_an_answer_fails() -> None:
    # An address of this machine where nobody listens on any port.
    env = {**os.environ, "OPERATOR_HOST": "127.77.77.77"}
    ended = subprocess.run(
        [sys.executable, CHART / "files" / "check.py"], env=env, capture_output=True, text=True
    )
    assert ended.returncode == 1
    lines = ended.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("FAIL ") for line in lines), lines
