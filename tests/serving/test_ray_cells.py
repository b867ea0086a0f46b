"""A deployment's own Ray."""

from typing import Any

import pytest
import ray

from macroserve.core.request import Slo
from macroserve.serving.finders import RayInstances
from macroserve.serving.ray_cells import CellOptions, DeployError, RayCells


@pytest.fixture
def cells() -> RayCells:
    options = CellOptions(
        strategy="unified", slo=Slo(1.0, 0.1), finder=RayInstances("test"), secret="secret"
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
