"""A child process reports its start and its end to its parent."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from support.played_parts import IDENTITY, Echo, PlayedPart

from macroserve.local import process as child_process
from macroserve.local.process import KILLED, SILENT, ChildProcess, ProcessError


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
async def process(said: list[str], tmp_path: Path) -> AsyncIterator[ChildProcess]:
    environment = {"PYTHONPATH": "tests", "COLOR": "red"}
    process = ChildProcess("instance-0", environment, str(tmp_path / "log"), said.append)
    yield process
    process.kill()
    await process.end()


def found() -> psutil.Process:
    (child,) = (p for p in psutil.Process().children() if "instance-0" in p.cmdline())
    return child


async def test_started_part_tells_its_identity_and_has_its_environment(
    process: ChildProcess,
) -> None:
    assert await process.start(PlayedPart()) == IDENTITY
    assert process.alive
    assert found().environ()["COLOR"] == "red"


async def test_part_that_does_not_start_tells_why(process: ChildProcess) -> None:
    with pytest.raises(ProcessError, match=r"^no such model$"):
        await process.start(PlayedPart(starts_with="no such model"))
    assert await process.end() == "no such model"
    assert not process.alive


async def test_part_that_fails_later_ends_with_its_cause(process: ChildProcess) -> None:
    await process.start(PlayedPart(fails_with="its engine has failed"))
    assert await process.end() == "its engine has failed"


async def test_killed_part_has_ended_and_left_no_process(process: ChildProcess) -> None:
    await process.start(PlayedPart())
    pid = found().pid
    os.kill(pid, signal.SIGKILL)
    assert await process.end() == KILLED
    assert not psutil.pid_exists(pid)


async def test_silent_part_is_killed(
    process: ChildProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "SILENCE_S", 3.0)
    await process.start(PlayedPart(hangs=True))
    assert await process.end() == SILENT


async def test_part_prints_into_the_file_of_the_logs(process: ChildProcess, tmp_path: Path) -> None:
    await process.start(PlayedPart())
    assert os.readlink(f"/proc/{found().pid}/fd/2") == str(tmp_path / "log")  # noqa: PTH115


async def test_job_gets_further_messages_and_its_events_are_passed_on(
    process: ChildProcess, said: list[str]
) -> None:
    process.launch(Echo())
    process.send("hello")
    await process.end()
    assert said == ["hello"]
    assert (process.failure, process.exit_code, process.alive) == (None, 0, False)
    process.send("lost")
