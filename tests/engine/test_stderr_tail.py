"""The cause of a worker's end is found in the output of its process."""

import os
import subprocess
import sys

import pytest

from macroserve.engine.vllm.stderr_tail import naming_worker_errors

FAILED = (
    "WorkerProc initialization failed due to an exception in a background process. "
    "See stack trace for root cause."
)
PROGRAM = """
import multiprocessing, sys
def worker():
    sys.stderr.write("loading " * 30000 + "\\n")
    raise ValueError("the model's weights are cut off: 3 of 7")
process = multiprocessing.Process(target=worker, name="Worker_PP1")
process.start()
process.join()
"""


def heard(program: str, error: Exception) -> Exception:
    """Return what is raised when a program has run and vLLM raises ``error``."""
    with pytest.raises(type(error)) as raised, naming_worker_errors():
        subprocess.run([sys.executable, "-c", program], timeout=60)
        raise error
    return raised.value


def test_worker_error_is_the_last_exception_of_its_process(
    capfd: pytest.CaptureFixture[str],
) -> None:
    cause = str(heard(PROGRAM, RuntimeError(FAILED)))
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
        ("(Worker_PP1 pid=7) ERROR [core.py:1] KeyError: 'x'", "KeyError: 'x'"),
        ("KeyError: 1\n\nTypeError: 2\nbye", "TypeError: 2"),
        ("nothing of note", FAILED),
    ],
)
def test_worker_error_is_found_in_other_messages(
    said: str, cause: str, capfd: pytest.CaptureFixture[str]
) -> None:
    program = f"import sys; sys.stderr.write({said + chr(10)!r})"
    assert str(heard(program, RuntimeError(FAILED))) == cause


def test_other_error_stays_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    error = ValueError("the cache is too small")
    assert heard("raise KeyError(1)", error) is error
