"""Kernels compile for the supported GPUs and fit into their shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("capability", "num_stages", "shared_bytes"),
    [(80, 3, 163 * 1024), (89, 2, 99 * 1024), (90, 3, 227 * 1024)],
    ids=["A100, A800", "L20, L40S", "H100, H200"],
)
def test_kernels_compile_and_fit_shared_memory(
    capability: int, num_stages: int, shared_bytes: int
) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = TESTS / "support" / "compile_kernels.py"
    command = [sys.executable, script, str(capability), str(num_stages)]
    path = os.pathsep.join([str(TESTS), env.get("PYTHONPATH", "")])
    process = subprocess.run(
        command, env={**env, "PYTHONPATH": path}, capture_output=True, text=True, timeout=200
    )
    assert process.returncode == 0, process.stderr
    shared = json.loads(process.stdout)
    assert len(shared) == 5
    assert {name: size for name, size in shared.items() if size > shared_bytes} == {}
