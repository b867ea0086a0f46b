"""The cause of an engine's end is found in the output of its process."""

import os
import subprocess
import sys

import pytest

from macroserve.engine.vllm.stderr_tail import StderrTail

FAILED = "Engine core initialization failed. See root cause above. Failed core proc(s): %s"
PROGRAM = """
import multiprocessing, sys
def core():
    sys.stderr.write("loading " * 30000 + "\\n")
    raise ValueError("the model's weights are cut off: 3 of 7")
process = multiprocessing.Process(target=core, name="EngineCore")
process.start()
process.join()
"""


def heard(program: str, error: str) -> str:
    words = StderrTail()
    try:
        subprocess.run([sys.executable, "-c", program], timeout=60)
    finally:
        words.close()
    return words.cause(RuntimeError(error))


def test_stderr_cause_is_the_last_exception(capfd: pytest.CaptureFixture[str]) -> None:
    cause = heard(PROGRAM, FAILED % "{'EngineCore': 1}")
    assert cause == "ValueError: the model's weights are cut off: 3 of 7"
    passed_on = capfd.readouterr().err
    assert passed_on.count("loading") == 30000 and cause in passed_on
    os.write(2, b"as before\n")
    assert capfd.readouterr().err == "as before\n"


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("a line\nOSError\n  more", "OSError"),
        ("torch.OutOfMemoryError: no memory", "torch.OutOfMemoryError: no memory"),
        ("(EngineCore pid=7) ERROR [core.py:1] KeyError: 'x'", "KeyError: 'x'"),
        ("KeyError: 1\n\nTypeError: 2\nbye", "TypeError: 2"),
        ("nothing of note", FAILED % "{'EngineCore': 1}"),
    ],
)
def test_stderr_cause_is_found_in_other_messages(
    said: str, cause: str, capfd: pytest.CaptureFixture[str]
) -> None:
    program = f"import sys; sys.stderr.write({said + chr(10)!r})"
    assert heard(program, FAILED % "{'EngineCore': 1}") == cause


def test_stderr_cause_of_a_killed_process_is_its_signal(capfd: pytest.CaptureFixture[str]) -> None:
    cause = heard("pass", FAILED % "{'EngineCore_DP0': -9}")
    assert cause == "the engine's process was killed (signal 9)"
