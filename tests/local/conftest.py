"""A reconciler that runs against a fake cluster."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.fake_cluster import FakeCluster, Scene

from macroserve.core.backoff import Backoff
from macroserve.core.scaling.fleet import DesiredFleet
from macroserve.core.scaling.mitosis import Bounds
from macroserve.local import reconciler as reconcile
from macroserve.local.reconciler import Reconciler


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[Scene]]:
    monkeypatch.setattr(reconcile, "RECONCILE_INTERVAL_S", 0)

    async def begin(instances: int, world: FakeCluster | None = None) -> Scene:
        world = world or FakeCluster()
        events: list[str] = []
        both: Any = world
        desired = DesiredFleet(instances, Bounds(2, 4), 0.0)
        reconciler = Reconciler(both, both, desired, 0.1, events.append, Backoff(0.0, 0.0))
        return Scene(world, reconciler, events, asyncio.create_task(reconciler.run()))

    return begin
