"""A deployment's own Ray."""

import asyncio
from typing import Any

import pytest
import ray
from support.keys import source

from macroserve.core.request import Slo
from macroserve.serving.ray import cells as ray_cells
from macroserve.serving.ray.cell_deployment import CellOptions
from macroserve.serving.ray.cells import DeployError, RayCells, RayLostError
from macroserve.serving.ray.instances import RayInstances


@pytest.fixture
def cells() -> RayCells:
    options = CellOptions(
        strategy="unified", slo=Slo(1.0, 0.1), discovery=RayInstances("test"), keys=source()
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
