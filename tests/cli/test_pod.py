"""A pod process reads its tokens and limits, and ends with a reason."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
import uvloop

from macroserve.cli import pod
from macroserve.cli.pod import LiveToken, PodError, fail, read_token, serve, use_cpu_limit


def test_live_token_is_the_last_readable_content_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "admin-token"
    with pytest.raises(PodError):
        LiveToken(tmp_path, "admin-token")
    file.write_text("one\n")
    token = LiveToken(tmp_path, "admin-token")
    file.write_text("two\n")
    assert token() == "two"
    file.write_text("")
    assert token() == "two"


def test_token_is_read_without_its_line_end(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    assert read_token(tmp_path, "secret") == "s3cret"


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "No such file"), (b"", "is empty"), (b" \n", "is empty"), (b"\xff", "not text")],
)
def test_token_that_is_unusable_raises_with_the_file(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    if content is not None:
        (tmp_path / "secret").write_bytes(content)
    with pytest.raises(PodError, match=says) as refused:
        read_token(tmp_path, "secret")
    assert str(tmp_path / "secret") in str(refused.value)


def test_pod_that_fails_writes_its_termination_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "termination-log"
    monkeypatch.setattr(pod, "TERMINATION_LOG", log)
    with pytest.raises(SystemExit) as end:
        fail("the engine has died", 1)
    assert end.value.code == 1
    assert capsys.readouterr().err == "error: the engine has died\n"
    assert not log.exists(), "only Kubernetes makes that file"
    log.touch()
    with pytest.raises(SystemExit):
        fail("the engine has died", 1)
    assert log.read_text() == "the engine has died"


@pytest.mark.parametrize(
    ("limit", "threads"),
    [("150000 100000", "2"), ("400000 100000", "4"), ("20000 100000", "1"), ("max 100000", None)],
)
def test_thread_count_follows_the_cpu_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, threads: str | None
) -> None:
    path = tmp_path / "cpu.max"
    path.write_text(limit)
    monkeypatch.setattr(pod, "CGROUP_CPU_MAX", path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    use_cpu_limit()
    assert os.environ["OMP_NUM_THREADS"] == (threads or str(len(os.sched_getaffinity(0))))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    use_cpu_limit()
    assert os.environ["OMP_NUM_THREADS"] == "7"


class Played:
    """A recorder of calls. after_start: called when it serves."""

    def __init__(self, after_start=lambda: None, healthy: bool = True) -> None:
        self.told: list[str] = []
        self._after_start = after_start
        self._healthy = healthy

    async def start(self) -> None:
        self.told.append("start")
        self._after_start()

    def check(self) -> None:
        if not self._healthy:
            raise RuntimeError("the engine has died")

    async def leave(self) -> None:
        self.told.append("leave")

    async def stop(self) -> None:
        self.told.append("stop")


def run(server: Played) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(5):
            await serve(server, "it", "127.0.0.1:1")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


@pytest.fixture
def own_signals():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_server_told_to_end_leaves_before_it_stops(number: signal.Signals) -> None:
    server = Played(
        lambda: asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), number)
    )
    run(server)
    assert server.told == ["start", "leave", "stop"]


@pytest.mark.usefixtures("own_signals")
def test_server_told_to_end_before_it_serves_exits_with_0() -> None:
    server = Played(lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit) as end:
        run(server)
    assert end.value.code == 0
    assert server.told == ["start"]


@pytest.mark.usefixtures("own_signals")
def test_server_that_is_unhealthy_ends_with_the_reason() -> None:
    server = Played(healthy=False)
    with pytest.raises(RuntimeError, match="died"):
        run(server)
    assert server.told == ["start"]
