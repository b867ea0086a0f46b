"""Batches that an engine starts completely, with results that arrive later."""

from collections.abc import Callable
from typing import Any

from macroserve.core.batch import Batch, BatchResult
from macroserve.core.scheduler.scheduler import InstanceScheduler


def begin(scheduler: InstanceScheduler, now: float, drafted: int = 0, **emitted: int) -> Batch:
    """Schedule a batch, and promise all of it."""
    batch = scheduler.schedule(now)
    prefilled = {p.request_id: p.num_tokens for p in batch.prefills}
    taken = BatchResult(0.0, prefilled, emitted, decoded=1, drafted=drafted)
    scheduler.promise(batch, taken)
    return batch


def preempt_young(scheduler: InstanceScheduler, make_request: Callable[..., Any]) -> None:
    """Let two requests decode until the ``young`` one is preempted, with a token in flight.

    scheduler: a preempting one with six blocks of eight tokens.
    """
    for name in ("old", "young"):
        scheduler.add_request(make_request(name, 0.0, 15, 17), 0.0)
    begin(scheduler, 0.0, old=1, young=1)
    for _ in range(8):
        begin(scheduler, 0.1)
        scheduler.settle((), {}, 0.1)
    assert begin(scheduler, 0.1).preempted == ("young",)
