"""The components of a deployment on one machine, with fake processes."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from support.keys import source

from macroserve.api.messages import InstanceIdentity
from macroserve.core.backoff import Backoff
from macroserve.core.status import Pool
from macroserve.local import cluster as local_cluster
from macroserve.local.cluster import ClusterOptions, LocalCluster
from macroserve.local.manifest_file import engine_settings, loads
from macroserve.local.parts import IngressPart
from macroserve.local.process import KILLED, SILENT, ProcessError
from macroserve.serving.ingress.server import IngressOptions
from macroserve.serving.ray.cells import DeployError
from macroserve.serving.ray.devices import Devices

HANGS = "hangs"
"""Cause of a start that does not end."""


class Played:
    """Fake processes, some of which the tests end.

    Attributes:
        failing: Causes of the starts to come, by the names of the parts.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: list[PlayedProcess] = []
        self.failing: dict[str, list[str]] = {}
        monkeypatch.setattr(local_cluster, "ChildProcess", self.new)

    def new(
        self, name: str, environment: Mapping[str, str] | None = None, output: str | None = None
    ) -> "PlayedProcess":
        self.processes.append(process := PlayedProcess(name, environment or {}, self.failing))
        return process

    async def until(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.processes) < count:  # noqa: ASYNC110
                await asyncio.sleep(0)


class PlayedProcess:
    def __init__(
        self, name: str, environment: Mapping[str, str], failing: dict[str, list[str]]
    ) -> None:
        self.name = name
        self.environment = environment
        self.part: Any = None
        self._failing = failing
        self._ended = asyncio.Event()
        self._cause = KILLED

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    async def start(self, part: Any) -> InstanceIdentity | None:
        self.part = part
        if causes := self._failing.get(self.name):
            if causes[0] == HANGS:
                await self._ended.wait()
            self.fail(causes.pop(0))
            raise ProcessError(self._cause)
        return None

    async def end(self) -> str:
        await self._ended.wait()
        return self._cause

    def fail(self, cause: str) -> None:
        self._cause = cause
        self._ended.set()

    def kill(self) -> None:
        self._ended.set()


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    monkeypatch.setattr(local_cluster, "BACKOFF", Backoff(0.0, 0.0))
    monkeypatch.setattr(local_cluster, "withdraw_instance", lambda name: None)
    return Played(monkeypatch)


@pytest.fixture
def cluster() -> LocalCluster:
    with open("manifests/emulated.yaml") as file:  # noqa: PTH123 - a small one
        manifest = loads(file.read(), "m")
    options = ClusterOptions(
        settings=engine_settings(manifest, "tiny"),
        ingress=IngressOptions(macroinstance="m", keys=source()),
        ingress_replicas=2,
        threads=3,
        secret="secret",
    )
    cluster = LocalCluster(options)
    cluster._head = SimpleNamespace(port=81)  # type: ignore[assignment]
    return cluster


async def test_ingress_replicas_are_told_where_the_head_is(
    cluster: LocalCluster, played: Played
) -> None:
    await cluster.deploy_ingress()
    assert [process.name for process in played.processes] == ["ingress-0", "ingress-1"]
    for process in played.processes:
        assert isinstance(process.part, IngressPart)
        assert process.part.head == "http://127.0.0.1:81"


async def test_ingress_of_which_one_replica_does_not_start_is_not_deployed(
    cluster: LocalCluster, played: Played
) -> None:
    played.failing["ingress-1"] = ["no such key"]
    with pytest.raises(DeployError, match=r"^no such key$"):
        await cluster.deploy_ingress()
    assert not any(process.alive for process in played.processes)


async def test_ingress_of_which_one_replica_never_listens_is_not_deployed(
    cluster: LocalCluster, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_cluster, "INGRESS_START_TIMEOUT_S", 0.0)
    played.failing["ingress-1"] = [HANGS]
    with pytest.raises(DeployError, match=f"^{SILENT}$"):
        await cluster.deploy_ingress()


async def test_ingress_replica_that_ends_is_started_again_until_it_serves(
    cluster: LocalCluster, played: Played
) -> None:
    told: list[str] = []
    await cluster.deploy_ingress()
    keeping = asyncio.create_task(cluster.keep_ingress(told.append))
    played.failing["ingress-0"] = ["no memory"]
    played.processes[0].fail("it does not answer")
    await played.until(4)
    assert [process.name for process in played.processes[2:]] == ["ingress-0", "ingress-0"]
    assert told == [
        "ingress-0 ended: it does not answer. It restarts in 0 s.",
        "ingress-0 ended: no memory. It restarts in 0 s.",
    ]
    played.processes[3].kill()
    await played.until(5)
    assert played.processes[1].alive
    keeping.cancel()


async def test_ingress_replica_that_ends_early_again_waits_longer(
    cluster: LocalCluster, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Recorded:
        def delay_s(self, num_failures: int) -> float:
            asked.append(num_failures)
            return 0.0

    monkeypatch.setattr(local_cluster, "BACKOFF", Recorded())
    await cluster.deploy_ingress()
    keeping = asyncio.create_task(cluster.keep_ingress(lambda text: None))
    for count in (3, 4, 5):
        played.processes[0 if count == 3 else -1].kill()
        await played.until(count)
    keeping.cancel()
    assert asked == [0, 1, 2]


async def test_instance_that_does_not_start_gives_its_devices_back(
    cluster: LocalCluster, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_cluster, "devices_each", lambda settings: 2)
    cluster._devices = Devices(["4", "6"], "CUDA_VISIBLE_DEVICES")
    played.failing["instance-0"] = ["no memory", "no memory"]
    for _ in range(2):
        with pytest.raises(ProcessError, match="no memory"):
            await cluster.start_instance("instance-0", Pool.LP)
    for process in played.processes:
        assert process.environment == {"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "4,6"}
    assert cluster.instance_names() == set()


async def test_instance_that_has_ended_tells_its_cause_and_lives_no_more(
    cluster: LocalCluster, played: Played
) -> None:
    cluster._instances["instance-0"] = process = played.new("instance-0")  # type: ignore[assignment]
    assert cluster.instance_names() == {"instance-0"}
    played.processes[0].fail("its engine has failed")
    assert not process.alive and cluster.instance_names() == set()
    assert await cluster.loss_cause("instance-0") == "its engine has failed"
    assert await cluster.loss_cause("instance-1") == KILLED
