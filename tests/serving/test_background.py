"""A background task that ends is a fault of its server."""

import asyncio
import re

import pytest

from macroserve.serving.background import BackgroundTasks


async def ends() -> None:
    """Return at once."""


async def fails() -> None:
    raise ValueError("no such cell")


async def runs() -> None:
    await asyncio.Event().wait()


async def test_background_tasks_that_run_have_no_fault() -> None:
    tasks = BackgroundTasks()
    tasks.start("runs", runs())
    tasks.start("prepares", ends(), may_end=True)
    await asyncio.sleep(0)
    assert tasks.fault is None
    await tasks.stop()


@pytest.mark.parametrize(
    ("task", "may_end", "fault"),
    [
        (ends, False, "background task ended (works)"),
        (fails, False, "background task failed (works): no such cell"),
        (fails, True, "background task failed (works): no such cell"),
    ],
)
async def test_background_task_that_ends_by_itself_is_a_fault(
    task, may_end: bool, fault: str
) -> None:
    tasks = BackgroundTasks()
    tasks.start("works", task(), may_end)
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match=re.escape(fault)):
        tasks.check()


async def test_background_tasks_that_were_stopped_have_no_fault() -> None:
    tasks = BackgroundTasks()
    tasks.start("runs", runs())
    await tasks.stop()
    assert tasks.fault is None
