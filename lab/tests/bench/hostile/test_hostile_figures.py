"""The names of hostile cases in results, and the fault of the poison case."""

import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from macroserve_lab.bench.hostile.measure import worst
from macroserve_lab.bench.hostile.poison import AFTER_A_TOKEN, AT_ONCE, faulty_engines
from macroserve_lab.cli.bench import bench

TAKE_IN = """
import time
from types import SimpleNamespace
from macroserve.core.scheduler.scheduler import InstanceScheduler
request = SimpleNamespace(num_prompt_tokens={length}, num_streamed_tokens={streamed})
try:
    InstanceScheduler.add_request(SimpleNamespace(), request, 0.0)
except AttributeError:
    time.sleep({wait_s})
"""


def test_worst_is_the_larger_of_both_engines_figures() -> None:
    seen = {"emulated": {"a": 1.0, "b": 3.0}, "vllm": {"a": 2.0, "c": 0.0}}
    assert worst(seen) == {
        "hostile.a": 2.0,
        "hostile.b": 3.0,
        "hostile.c": 0.0,
        "hostile.emulated.a": 1.0,
        "hostile.emulated.b": 3.0,
        "hostile.vllm.a": 2.0,
        "hostile.vllm.c": 0.0,
    }


def test_bench_with_an_unknown_engine_exits_with_2() -> None:
    result = CliRunner().invoke(bench, ["hostile", "--engine", "steam"])
    assert result.exit_code == 2
    assert "steam" in result.output


@pytest.mark.parametrize(
    ("length", "streamed", "wait_s", "killed"),
    [
        (AT_ONCE, 0, 0, True),
        (AT_ONCE + 9, 9, 0, True),
        (AFTER_A_TOKEN, 0, 5, True),
        (AT_ONCE - 1, 0, 1, False),
    ],
)
def test_faulty_engine_dies_of_its_prompt_length_alone(
    length: int, streamed: int, wait_s: float, killed: bool
) -> None:
    code = TAKE_IN.format(length=length, streamed=streamed, wait_s=wait_s)
    with faulty_engines() as environment:
        ended = subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment})
    assert (ended.returncode == -signal.SIGKILL) == killed
