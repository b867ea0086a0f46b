"""A scheduler that measures its CPU time."""

from time import thread_time

from macroserve.core.batch import Batch, BatchResult
from macroserve.core.latency import LatencyModel
from macroserve.core.request import Request
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.scheduler.scheduler import InstanceScheduler, Refusal


class TimedScheduler(InstanceScheduler):
    """An instance scheduler that measures its CPU time.

    elapsed_s: CPU time of all calls so far.
    """

    def __init__(self, config: InstanceConfig, latency: LatencyModel) -> None:
        super().__init__(config, latency)
        self.elapsed_s = 0.0

    def add_request(self, request: Request, now: float) -> Refusal | None:
        began_s = thread_time()
        refusal = super().add_request(request, now)
        self.elapsed_s += thread_time() - began_s
        return refusal

    def schedule(self, now: float) -> Batch:
        began_s = thread_time()
        batch = super().schedule(now)
        self.elapsed_s += thread_time() - began_s
        return batch

    def update(self, batch: Batch, result: BatchResult, now: float) -> None:
        began_s = thread_time()
        super().update(batch, result, now)
        self.elapsed_s += thread_time() - began_s
