"""A GPU's kernels attend to the same hidden states as the CPU's products."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("model", ["qwen", "opt"])
def test_tokens_with_kernels_equal_those_of_the_cpu(model: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "support.hybrid_by_kernels", str(tmp_path), model],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr[-3000:]
