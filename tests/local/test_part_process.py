"""A part runs in a process of its own, and its parent hears how it stands."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from support.played_parts import IDENTITY, PlayedPart

from macroserve.local import part_process
from macroserve.local.part_process import KILLED, SILENT, PartError, PartProcess
from macroserve.serving.logs import FILE_VARIABLE


@pytest.fixture
async def process(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PartProcess]:
    process = PartProcess("instance-0", {"PYTHONPATH": "tests", "COLOR": "red"})
    yield process
    process.kill()
    await process.end()


def found() -> psutil.Process:
    (child,) = (p for p in psutil.Process().children() if "instance-0" in p.cmdline())
    return child


async def test_started_part_tells_its_identity_and_has_its_environment(
    process: PartProcess,
) -> None:
    assert await process.start(PlayedPart()) == IDENTITY
    assert process.alive
    assert found().environ()["COLOR"] == "red"


async def test_part_that_does_not_start_tells_why(process: PartProcess) -> None:
    with pytest.raises(PartError, match=r"^no such model$"):
        await process.start(PlayedPart(starts_with="no such model"))
    assert await process.end() == "no such model"
    assert not process.alive


async def test_part_that_fails_later_ends_with_its_cause(process: PartProcess) -> None:
    await process.start(PlayedPart(fails_with="its engine has failed"))
    assert await process.end() == "its engine has failed"


async def test_killed_part_has_ended_and_left_no_process(process: PartProcess) -> None:
    await process.start(PlayedPart())
    pid = found().pid
    os.kill(pid, signal.SIGKILL)
    assert await process.end() == KILLED
    assert not psutil.pid_exists(pid)


async def test_silent_part_is_killed(process: PartProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_process, "SILENCE_S", 3.0)
    await process.start(PlayedPart(hangs=True))
    assert await process.end() == SILENT


async def test_part_prints_into_the_file_of_the_logs(
    process: PartProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "log"
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    await process.start(PlayedPart())
    pid = found().pid
    assert os.readlink(f"/proc/{pid}/fd/2") == str(file)  # noqa: PTH115
