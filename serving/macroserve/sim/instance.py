"""The simulator's executor: one instance that runs batches in virtual time."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from macroserve.core.batch import Batch, BatchKind, BatchResult, HandBackReason
from macroserve.core.instance.config import InstanceConfig
from macroserve.core.instance.scheduler import InstanceScheduler, Refusal
from macroserve.core.latency import LatencyModel, Work
from macroserve.core.views import InstanceStatus, Pool
from macroserve.sim.record import Record

MAX_RUN_STEPS = 32
"""Decode steps that one event may stand for."""


Truth = Callable[[Sequence[tuple[int, int]], int, int, int], float]
"""Seconds that a batch takes; called as ``core.latency.LatencyModel.work``."""


class Exact(LatencyModel):
    """A latency model that is also the truth: there is nothing to learn from what took place."""

    def observe(self, work: Work, elapsed_s: float) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Engine:
    """What simulated instances are like.

    truth: how long their batches take. latency: what each one's scheduler predicts with.
    """

    config: InstanceConfig
    truth: Truth
    latency: Callable[[], LatencyModel]

    @staticmethod
    def known(config: InstanceConfig, latency: Exact) -> "Engine":
        """Its schedulers know how long batches take."""
        return Engine(config, lambda *batch: latency.predict(latency.work(*batch)), lambda: latency)


class Run:
    """A batch that is being run: once, or, when it only decodes, until something may change it.

    ends_s: when each repetition ends. While all that is here decodes and nothing waits, the
    scheduler would decide the same batch again, so that one event can stand for many steps. Only
    its guesses of how long responses get, which routing by load reads, are renewed less often.
    """

    __slots__ = ("batch", "began_s", "ends_s")

    def __init__(self, batch: Batch, began_s: float, ends_s: list[float]) -> None:
        self.batch = batch
        self.began_s = began_s
        self.ends_s = ends_s


class SimulatedInstance:
    """run: what it does now, None while it idles."""

    def __init__(
        self, name: str, pool: Pool, engine: Engine, max_run_steps: int = MAX_RUN_STEPS
    ) -> None:
        self.name = name
        self.policy = InstanceScheduler(replace(engine.config, pool=pool), engine.latency())
        self.run: Run | None = None
        self._truth = engine.truth
        self._block_size = engine.config.block_size
        self._free_blocks = engine.config.num_blocks
        self._max_run_steps = max_run_steps
        self._records: dict[str, Record] = {}

    def add(self, record: Record, now: float) -> Refusal | None:
        """Let it wait here. Of a run that was settled at ``now``, only the present step is left."""
        refusal = self.policy.add_request(record.request, now)
        if refusal is None:
            self._records[record.request.request_id] = record
            if self.run is not None:
                del self.run.ends_s[1:]
        return refusal

    def begin(self, now: float) -> list[tuple[Record, HandBackReason]]:
        """Decide the next batch and run it; what has to leave, and why."""
        batch = self.policy.schedule(now)
        left = [(self._records.pop(item.request_id), item.reason) for item in batch.handed_back]
        for request_id in batch.preempted:
            self._records[request_id].num_computed = 0
        for prefill in batch.prefills:
            self._records[prefill.request_id].is_hidden = prefill.hidden
        self.run = (
            None if batch.kind is BatchKind.IDLE else Run(batch, now, self._ends_s(batch, now))
        )
        return left

    def settle(self, now: float) -> tuple[float, list[Record]] | None:
        """Take in the steps that have ended by ``now``; from the end of the last of them on, which
        is returned with the requests that ended then, it waits for ``begin``. None where none has
        ended."""
        if self.run is None or self.run.ends_s[0] > now:
            return None
        batch, num_steps = self.run.batch, bisect_right(self.run.ends_s, now)
        began_s = self.run.began_s
        first_step_s = self.run.ends_s[0] - began_s
        end_s = self.run.ends_s[num_steps - 1]
        self.run = None
        prefilled = {prefill.request_id: prefill.num_tokens for prefill in batch.prefills}
        emitted: dict[str, int] = {}
        finished: list[Record] = []
        for request_id in (*prefilled, *batch.decodes):
            record = self._records[request_id]
            if request_id not in prefilled and record.num_emitted == 1:
                record.decoding_s = began_s
            record.num_computed += prefilled.get(request_id, num_steps)
            if record.num_computed >= record.num_tokens:
                emitted[request_id] = num_steps
                if record.emit(num_steps, end_s):
                    finished.append(self._records.pop(request_id))
        ended = frozenset([record.request.request_id for record in finished])
        # The scheduler decided one step, and so it learns from one.
        result = BatchResult(first_step_s, prefilled, emitted, ended)
        self.policy.update(batch, result, end_s)
        return end_s, finished

    def status(self, now: float) -> InstanceStatus:
        status = self.policy.status(now)
        self._free_blocks = status.free_blocks
        return status

    def _ends_s(self, batch: Batch, now: float) -> list[float]:
        truth, num_decodes = self._truth, len(batch.decodes)
        prefills = [
            (p.num_tokens, self._records[p.request_id].num_computed) for p in batch.prefills
        ]
        context = hidden = num_hidden = 0
        for request_id in batch.decodes:
            record = self._records[request_id]
            context += record.num_tokens
            if record.is_hidden:
                hidden += record.num_tokens
                num_hidden += 1
        steps_s = (
            truth(prefills, num_decodes, context + step * num_decodes, hidden + step * num_hidden)
            for step in range(self._num_steps(batch))
        )
        return list(accumulate(steps_s, initial=now))[1:]

    def _num_steps(self, batch: Batch) -> int:
        """How often the same batch runs, as far as this instance can know: until the first
        response ends, as long as every sequence is sure to find its KV blocks."""
        num_decodes = len(batch.decodes)
        if num_decodes < len(self._records):
            return 1
        blocks_each = self._max_run_steps // self._block_size + 2
        if num_decodes * blocks_each > self._free_blocks:
            return 1
        records = [self._records[request_id] for request_id in batch.decodes]
        to_first_end = min([record.num_output - record.num_emitted for record in records])
        return min(to_first_end, self._max_run_steps)
