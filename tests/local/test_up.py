"""``macroserve up`` restarts a lost deployment, here a fake."""

import asyncio
import io
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console
from support.deployment import free_port

from macroserve.core.backoff import Backoff
from macroserve.core.scaling.fleet import DesiredFleet
from macroserve.local import state, up
from macroserve.local.control import send
from macroserve.local.deployment import DeploymentJob
from macroserve.local.manifest_file import engine_settings, loads, read
from macroserve.local.up import DeploymentError, Progress, Up, UpOptions

MANIFEST = Path("manifests/emulated.yaml")


class Played:
    """A fake DeploymentProcess. lives: for each start, whether it gets ready and why it ends."""

    lives: list[tuple[bool, str]]
    ready: asyncio.Event

    def __init__(self, on_event: Callable[[str], None]) -> None:
        self.desired: list[DesiredFleet] = []
        Played.it = self

    async def run(self, setup: DeploymentJob) -> str:
        self.desired.append(setup.desired)
        if not self.lives:
            await asyncio.Event().wait()
        is_ready, reason = self.lives.pop(0)
        if is_ready:
            self.ready.set()
        # Time in which a client that polls the ready endpoint notices it.
        for _ in range(20):
            await asyncio.sleep(0)
        self.ready.clear()
        return reason

    def change(self, desired: DesiredFleet) -> None:
        self.desired.append(desired)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[io.StringIO]:
    async def ready(endpoint: str) -> None:
        await Played.ready.wait()

    async def command(*_: object) -> str:
        return "curl"

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(up, "DeploymentProcess", Played)
    monkeypatch.setattr(up, "BACKOFF", Backoff(0.0, 0.0))
    monkeypatch.setattr(up, "first_request", command)
    monkeypatch.setattr(up, "until_ready", ready)
    with state.claimed("emulated"):
        yield io.StringIO()


def begun(log: io.StringIO, *lives: tuple[bool, str]) -> Up:
    Played.lives, Played.ready = list(lives), asyncio.Event()
    saved = read(MANIFEST)
    manifest = loads(saved.text, "m")
    options = UpOptions(MANIFEST, "127.0.0.1", 18999, None, None)
    progress = Progress(Console(file=log, width=300))
    return Up(options, saved, manifest, engine_settings(manifest, "tiny"), progress)


async def until(log: io.StringIO, text: str) -> None:
    async with asyncio.timeout(5):
        while text not in log.getvalue():  # noqa: ASYNC110 - a log tells nobody
            await asyncio.sleep(0)


async def stopped(task: asyncio.Task[None]) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    await task


async def test_up_whose_first_start_fails_ends_with_the_reason(log: io.StringIO) -> None:
    deployment = begun(log, (False, "The servers do not start: no memory"))
    with pytest.raises(ExceptionGroup) as failed:
        await deployment.run()
    [error] = failed.value.exceptions
    assert isinstance(error, DeploymentError) and "no memory" in str(error)
    assert "Stopped: every process has ended" in log.getvalue().splitlines()[-1]
    with pytest.raises(state.NotRunningError):
        state.find(None)


async def test_deployment_that_was_lost_starts_again_until_it_is_ready(log: io.StringIO) -> None:
    lost = "Ray's control store has ended."
    deployment = begun(log, (True, lost), (False, "no memory."), (False, "no disk."))
    task = asyncio.create_task(deployment.run())
    await until(log, "no disk. Everything restarts")
    assert f"{lost} Everything restarts" in log.getvalue()
    assert "no memory. Everything restarts" in log.getvalue()
    assert not task.done()
    await stopped(task)


async def test_order_before_the_loss_holds_after_it(log: io.StringIO) -> None:
    deployment = begun(log, (True, "lost."), (True, "lost again."))
    task = asyncio.create_task(deployment.run())
    await until(log, "lost.")
    await asyncio.to_thread(send, state.find(None), "scale", "3")
    await until(log, "lost again.")
    async with asyncio.timeout(5):
        while Played.lives:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert Played.it.desired[-1].desired_instances == 3
    await stopped(task)


async def test_up_on_ctrl_c_stops_once(log: io.StringIO) -> None:
    task = asyncio.create_task(begun(log).run())
    async with asyncio.timeout(5):
        while not Played.it.desired:  # noqa: ASYNC110
            await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGINT)
    await stopped(task)
    text = log.getvalue()
    assert text.count("Stopping") == 1 and text.count("Stopped") == 1


def test_up_whose_paths_have_brackets_prints_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended:
        def __init__(self, *_: object) -> None: ...

        async def run(self) -> None: ...

    folder, states, out = tmp_path / "[v2]", tmp_path / "[bold]", io.StringIO()
    folder.mkdir()
    manifest = folder / "m.yaml"
    manifest.write_text(MANIFEST.read_text())
    monkeypatch.setenv("XDG_STATE_HOME", str(states))
    monkeypatch.setenv(up.FILE_VARIABLE, "")
    monkeypatch.setattr(up, "Up", Ended)
    up.run(UpOptions(manifest, "127.0.0.1", free_port(), None, None), Console(file=out, width=300))
    assert f"from {manifest}" in out.getvalue()
    assert f"Logs are in {states}" in out.getvalue()
