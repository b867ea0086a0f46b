"""The Ray cluster of a deployment."""

import asyncio
import inspect
import math
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private import node as ray_node
from ray.serve.schema import ApplicationStatus
from support.keys import source

from macroserve.core.request import Slo
from macroserve.serving.ray import cells as ray_cells
from macroserve.serving.ray.cell_deployment import CellOptions
from macroserve.serving.ray.cells import DeployError, RayCells, RayLostError, run_application
from macroserve.serving.ray.registry import RegisteredInstances


@pytest.fixture
def cells() -> RayCells:
    options = CellOptions(
        strategy="unified",
        slo=Slo(1.0, 0.1),
        discovery=RegisteredInstances(source()),
        keys=source(),
    )
    return RayCells("test", options)


@pytest.mark.parametrize(
    "error",
    [
        OSError("AF_UNIX path length cannot exceed 107 bytes: /tmp/very/long"),
        PermissionError(13, "Permission denied", "/tmp/ray"),
        RuntimeError("the control store does not come up"),
    ],
)
def test_ray_that_does_not_start_tells_why(
    monkeypatch: pytest.MonkeyPatch, cells: RayCells, error: Exception
) -> None:
    def init(**options: Any) -> None:
        raise error

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(DeployError, match=r"Ray: .*(107 bytes|Permission denied|does not come up)"):
        cells.start()


def test_ray_still_has_a_fixed_limit_where_it_is_replaced() -> None:
    source = inspect.getsource(ray_node.Node)
    assert "raylet_start_wait_time_s = 30" in source
    assert "ray._private.services.get_node(" in source


@pytest.mark.parametrize("delay_s", [100.0, 1000.0])
def test_slow_node_manager_is_waited_for_within_limits(
    monkeypatch: pytest.MonkeyPatch, cells: RayCells, delay_s: float
) -> None:
    now_s = 0.0

    def get_node(address: str, node: str) -> dict[str, str]:
        if now_s < delay_s:
            raise RuntimeError("no such node")
        return {}

    def sleep(duration_s: float) -> None:
        nonlocal now_s
        now_s += duration_s

    def init(**options: Any) -> None:
        """Ask as Ray's ``Node`` does, which gives up if the first answer takes longer than 30 s."""
        ray_cells.services.get_node("address", "node")

    monkeypatch.setattr(ray_cells.services, "get_node", get_node)
    monkeypatch.setattr(ray_cells, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=sleep))
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray_cells, "_end_idle_parts", lambda: None)
    monkeypatch.setattr(ray_cells.serve, "start", lambda **options: None)
    if delay_s < ray_cells.START_S:
        cells.start()
    else:
        with pytest.raises(DeployError, match="no such node"):
            cells.start()
    assert ray_cells.services.get_node is get_node


@pytest.mark.parametrize(
    ("ended", "nodes", "says"),
    [
        ({"gcs_server"}, [{"Alive": True}], "control store has ended"),
        ({"raylet"}, [{"Alive": True}], "node manager has ended"),
        (set(), [{"Alive": False}], "node manager does not answer"),
        (set(), ConnectionError("away"), "control store does not answer"),
    ],
)
async def test_ray_that_is_lost_is_named(
    monkeypatch: pytest.MonkeyPatch,
    cells: RayCells,
    ended: set[str],
    nodes: list[dict[str, bool]] | Exception,
    says: str,
) -> None:
    class Node:
        def dead_processes(self) -> list[tuple[str, None]]:
            return [(kind, None) for kind in ("log_monitor", *ended)]

    def found() -> list[dict[str, bool]]:
        if isinstance(nodes, Exception):
            raise nodes
        return nodes

    monkeypatch.setattr(ray_cells, "WATCH_S", 0.0)
    monkeypatch.setattr(ray_cells, "SILENCE_S", 0.05)
    monkeypatch.setattr(ray_cells.worker, "_global_node", Node())
    monkeypatch.setattr(ray, "nodes", found)
    with pytest.raises(RayLostError, match=says):
        await cells.watch()


async def test_control_store_that_ends_while_it_is_asked_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch, cells: RayCells
) -> None:
    asked, given_up = threading.Event(), threading.Event()

    class Node:
        def dead_processes(self) -> list[tuple[str, None]]:
            return [("gcs_server", None)] if asked.is_set() else []

    def without_an_answer() -> list[dict[str, bool]]:
        asked.set()
        given_up.wait()
        return []

    monkeypatch.setattr(ray_cells, "WATCH_S", 0.01)
    monkeypatch.setattr(ray_cells.worker, "_global_node", Node())
    monkeypatch.setattr(ray, "nodes", without_an_answer)
    try:
        async with asyncio.timeout(ray_cells.SILENCE_S / 2):
            with pytest.raises(RayLostError, match="control store has ended"):
                await cells.watch()
    finally:
        given_up.set()


async def test_ray_that_answers_now_and_then_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, cells: RayCells
) -> None:
    calls = 0

    def every_second() -> list[dict[str, bool]]:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise ConnectionError("away")
        return [{"Alive": True}]

    monkeypatch.setattr(ray_cells, "WATCH_S", 0.0)
    monkeypatch.setattr(ray_cells, "SILENCE_S", 5.0)
    monkeypatch.setattr(ray_cells.worker, "_global_node", None)
    monkeypatch.setattr(ray, "nodes", every_second)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await cells.watch()
    assert calls > 2


def test_parts_of_ray_that_nothing_uses_are_ended(
    monkeypatch: pytest.MonkeyPatch, cells: RayCells
) -> None:
    ended: list[str] = []

    class Node:
        def __getattr__(self, name: str) -> Any:
            return lambda **options: ended.append(name)

    monkeypatch.setattr(ray, "init", lambda **options: None)
    monkeypatch.setattr(ray_cells.serve, "start", lambda **options: None)
    monkeypatch.setattr(ray_cells.worker, "_global_node", Node())
    cells.start()
    assert ended == ["kill_log_monitor", "kill_monitor", "kill_dashboard"]


async def test_cells_are_those_that_were_deployed_and_not_deleted(
    monkeypatch: pytest.MonkeyPatch, cells: RayCells
) -> None:
    status = SimpleNamespace(applications={})
    monkeypatch.setattr(ray_cells.serve, "status", lambda: status)
    monkeypatch.setattr(ray_cells, "is_announced", lambda name: False)
    monkeypatch.setattr(ray_cells, "run_application", lambda app, name: None)
    monkeypatch.setattr(ray_cells, "withdraw", lambda name: None)
    await cells.deploy_cell("cell-0")
    await cells.deploy_cell("cell-1")
    await cells.delete_cell("cell-0")
    assert cells.cells == {"cell-1"}


async def test_cell_that_could_not_be_deployed_is_none(
    monkeypatch: pytest.MonkeyPatch, cells: RayCells
) -> None:
    def fail(app: Any, name: str) -> None:
        raise DeployError("its replica does not start")

    monkeypatch.setattr(ray_cells, "is_announced", lambda name: False)
    monkeypatch.setattr(ray_cells, "run_application", fail)
    with pytest.raises(DeployError):
        await cells.deploy_cell("cell-0")
    assert not cells.cells
    monkeypatch.setattr(ray_cells, "is_announced", lambda name: True)
    await cells.deploy_cell("cell-0")
    assert cells.cells == {"cell-0"}, "it runs after all"


class FakeServe:
    """A fake of Serve with one application and a manual clock.

    Attributes:
        now_s: Time since the start.
        starts_s: Time that the application takes to start.
        ends_as: Status after that; None for an application that is gone.
        message: Message of the deployment after that.
        announced_s: Time at which a scheduler has announced itself.
    """

    def __init__(
        self,
        starts_s: float,
        ends_as: ApplicationStatus | None,
        message: str = "",
        announced_s: float = math.inf,
    ) -> None:
        self.now_s = 0.0
        self.starts_s = starts_s
        self.ends_as = ends_as
        self.message = message
        self.announced_s = announced_s

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray_cells.serve, "run_many", self.run_many)
        monkeypatch.setattr(ray_cells.serve, "status", self.status)
        monkeypatch.setattr(ray_cells.time, "sleep", self.sleep)
        monkeypatch.setattr(ray_cells, "is_announced", lambda name: self.now_s >= self.announced_s)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def run_many(self, targets: Any, wait_for_applications_running: bool = True) -> None:
        while wait_for_applications_running and self.now_s < self.starts_s:
            self.sleep(1.0)

    def status(self) -> SimpleNamespace:
        ended = self.now_s >= self.starts_s
        status = self.ends_as if ended else ApplicationStatus.DEPLOYING
        if status is None:
            return SimpleNamespace(applications={})
        deployment = SimpleNamespace(message=self.message if ended else "")
        application = SimpleNamespace(
            status=status, deployments={"CellDeployment": deployment}, message=""
        )
        return SimpleNamespace(applications={"cell-0": application})


def test_application_that_starts_is_noticed_within_a_fifth_of_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeServe(starts_s=2.05, ends_as=ApplicationStatus.RUNNING)
    fake.patch(monkeypatch)
    run_application(None, "cell-0")
    assert fake.starts_s <= fake.now_s < fake.starts_s + 0.2


def test_scheduler_that_announced_itself_runs_before_serve_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeServe(starts_s=2.05, ends_as=ApplicationStatus.RUNNING, announced_s=1.55)
    fake.patch(monkeypatch)
    run_application(None, "cell-0")
    assert fake.announced_s <= fake.now_s < fake.announced_s + 0.2


def test_application_whose_replica_fails_tells_why(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1\nOSError: no free port\n'
    FakeServe(1.0, ApplicationStatus.DEPLOY_FAILED, trace).patch(monkeypatch)
    with pytest.raises(DeployError, match=r"^no free port$"):
        run_application(None, "cell-0")


def test_application_that_is_deleted_while_it_starts_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    FakeServe(1.0, ends_as=None).patch(monkeypatch)
    with pytest.raises(DeployError, match="cell-0 was deleted"):
        run_application(None, "cell-0")


def test_application_that_serve_does_not_take_tells_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(targets: Any, wait_for_applications_running: bool) -> None:
        raise RuntimeError("Deploying application cell-0 failed:\nits runtime does not fit")

    monkeypatch.setattr(ray_cells.serve, "run_many", refuse)
    with pytest.raises(DeployError, match="runtime does not fit"):
        run_application(None, "cell-0")
