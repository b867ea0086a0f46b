"""The simulator's executor: an instance that runs batches in virtual time."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, repeat
from operator import mul
from typing import NamedTuple

from macroserve.core.batch import Batch, BatchKind, BatchResult, HandBackReason
from macroserve.core.block_pool import BlockPool
from macroserve.core.latency import LatencyModel, Work
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.scheduler.scheduler import InstanceScheduler, Refusal
from macroserve.core.status import InstanceStatus, Pool
from macroserve.sim.device import DecodingBatch, SimRequest
from macroserve.sim.hardware.pipeline import Pipeline
from macroserve.sim.prefixes import block_hashes

MAX_RUN_STEPS = 32
"""Maximum decode steps per event."""

ExecutionTimePredictor = Callable[[Sequence[tuple[int, int]], int, int, int], float]
"""Function that returns the seconds of a batch; arguments as for ``LatencyModel.work``."""


class FixedLatencyModel(LatencyModel):
    """A latency model that is assumed to be exact and does not learn."""

    def observe(self, work: Work, elapsed_s: float) -> None:
        pass


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """Description of simulated instances."""

    config: InstanceConfig
    execution_time_s: ExecutionTimePredictor
    """True time of a batch."""
    latency: Callable[[], LatencyModel]
    """Factory of each scheduler's latency model."""
    noise: Iterator[float] = field(default_factory=partial(repeat, 1.0))
    """Factors on the true time of successive steps."""
    pipeline: Pipeline | None = None
    """None for a single stage."""
    is_ahead: bool = False
    """Whether a step is decided when the previous one begins; a request that arrives meanwhile
    joins the step after it."""
    shares_prefixes: bool = False
    """Whether instances have a prefix cache."""

    @staticmethod
    def known(config: InstanceConfig, latency: FixedLatencyModel) -> "InstanceSpec":
        """Return instances whose schedulers predict batch times exactly."""
        return InstanceSpec(
            config, lambda *batch: latency.predict(latency.work(*batch)), lambda: latency
        )


class ActiveBatch:
    """A batch that runs once or, with decodes only, until something may change it.

    While all requests decode and none waits, the scheduler would decide the same batch again, so
    one event covers many steps. Only predictions of response lengths are updated less often.
    """

    __slots__ = ("batch", "ends_s", "first_step_s", "start_s")

    def __init__(self, batch: Batch, began_s: float, ends_s: list[float]) -> None:
        self.batch = batch
        self.start_s = began_s
        """Start of the first step not yet processed."""
        self.first_step_s = ends_s[0] - began_s
        self.ends_s = ends_s
        """Ends of the steps not yet processed."""

    def truncate(self) -> None:
        """Drop all steps after the current one."""
        del self.ends_s[1:]


class StepOutcome(NamedTuple):
    """Outcome of successive steps of a batch."""

    batch: Batch
    start_s: float
    end_s: float
    num_steps: int
    finished: list[SimRequest]


class SimulatedInstance:
    """An instance in virtual time.

    Its scheduler decides for all stages of a pipeline together, and the next batch begins when the
    first stage has finished the previous one. Micro-batches that are shorter than the previous ones
    wait for them while the first stage idles: a bubble (EcoServe, figure 4).
    """

    def __init__(self, name: str, pool: Pool, spec: InstanceSpec) -> None:
        self.name = name
        config = replace(spec.config, pool=pool)
        # The pool supports a single group of layers, which keeps the blocks of all tokens.
        shares = spec.shares_prefixes and not config.block_groups
        self._cache = cache = BlockPool(config.num_blocks, config.block_size) if shares else None
        self.policy = InstanceScheduler(config, spec.latency(), cache)
        self.active: ActiveBatch | None = None
        """The running batch; None while the instance idles."""
        self._execution_time_s = spec.execution_time_s
        self._is_ahead = spec.is_ahead
        self._pipeline = spec.pipeline
        self._noise = spec.noise
        self._block_size = spec.config.block_size
        self._free_blocks = spec.config.num_blocks
        self._num_kv_tokens = spec.config.num_blocks * self.policy.running.blocks.block_size
        self._num_groups = max(1, len(config.block_groups))
        self._depth_s = 0.0
        """Seconds by which the last stage ends a batch after the first one."""
        self._drained_s = 0.0
        """Time at which the last stage ends the previous batch."""
        self._records: dict[str, SimRequest] = {}
        self._arriving: list[SimRequest] = []
        """Requests that arrived after the next step was decided."""
        self._decoding = DecodingBatch()
        self._resting: dict[str, SimRequest] = {}
        self._cached: dict[str, int] = {}

    @property
    def num_requests(self) -> int:
        return len(self._records)

    @property
    def num_cache_blocks(self) -> int:
        """Return the blocks of the prefix cache; 0 without one."""
        return 0 if self._cache is None else self.policy.config.num_blocks

    @property
    def kv_use(self) -> float:
        """Return the share of the KV cache filled with tokens, without reservations."""
        decoding, resting = self._decoding, self._resting
        others = [r for i, r in self._records.items() if i not in decoding and i not in resting]
        num_tokens = decoding.num_tokens + sum(record.num_tokens for record in resting.values())
        num_tokens += sum(record.num_computed for record in others)
        return num_tokens / self._num_kv_tokens

    def add(self, record: SimRequest, now: float) -> Refusal | None:
        """Queue a request and truncate the active batch, which has been advanced to ``now``."""
        request = record.request
        if self._cache is not None:
            num_tokens = request.num_prompt_tokens
            hashes = block_hashes(
                num_tokens + record.num_output if record.is_open else num_tokens,
                record.block_ids,
                record.block_tokens,
                self._block_size,
                record.is_open,
            )
            self._cache.add(request.request_id, num_tokens, hashes)
        is_late = self._is_ahead and self.active is not None
        policy = self.policy
        refusal = policy.refusal(request) if is_late else policy.add_request(request, now)
        if refusal is None:
            self._records[request.request_id] = record
            if is_late:
                self._arriving.append(record)
            if self.active is not None:
                self.active.truncate()
        elif self._cache is not None:
            self._cache.remove(request.request_id)
        return refusal

    def begin(self, now: float) -> list[tuple[SimRequest, HandBackReason]]:
        """Decide and run the next batch; return the requests that leave, with reasons."""
        batch, left = self._decide(now)
        arriving, self._arriving = self._arriving, []
        for record in arriving:
            self.policy.add_request(record.request, now)
        if arriving and batch.kind is BatchKind.IDLE:
            batch, more = self._decide(now)
            left += more
        self._cached = self._begin_prefixes(batch, left)
        for prefill in batch.prefills:
            self._records[prefill.request_id].is_hidden = prefill.hidden
        self.active = None if batch.kind is BatchKind.IDLE else self._run(batch, now)
        if arriving and self.active is not None:
            self.active.truncate()
        return left

    def _decide(self, now: float) -> tuple[Batch, list[tuple[SimRequest, HandBackReason]]]:
        """Decide the next batch; return it with the requests that leave."""
        batch = self.policy.schedule(now)
        for request_id in batch.preempted:
            self._preempt(request_id)
        records = self._records
        return batch, [(records.pop(item.request_id), item.reason) for item in batch.handed_back]

    def advance_to(self, now: float) -> StepOutcome | None:
        """Process the steps that have ended by ``now``; return None if there are none.

        After the batch, ``active`` is None and the instance waits for ``begin``.
        """
        active = self.active
        if active is None or active.ends_s[0] > now:
            return None
        num_steps = bisect_right(active.ends_s, now)
        ended_s, active.ends_s = active.ends_s[:num_steps], active.ends_s[num_steps:]
        start_s, active.start_s = active.start_s, ended_s[-1]
        if not active.ends_s:
            self.active = None
        end_s, batch = ended_s[-1], active.batch
        self._drained_s = end_s + self._depth_s
        finished = self._decoding.step(ended_s) if batch.decodes else []
        prefilled = {prefill.request_id: prefill.num_tokens for prefill in batch.prefills}
        emitted: dict[str, int] = {}
        for request_id, num_tokens in prefilled.items():
            record = self._records[request_id]
            record.num_computed += num_tokens
            if record.num_computed >= record.num_tokens:
                record.emit((end_s + self._depth_s,))
                emitted[request_id] = 1
                if record.ended:
                    finished.append(record)
                else:
                    self._decoding.add(record)
        ended = tuple([record.request.request_id for record in finished])
        self._end_prefixes(batch, ended)
        for request_id in ended:
            del self._records[request_id]
        # The scheduler decided one step, so it learns from one.
        num_decoded = num_steps if batch.decodes else 0
        result = BatchResult(
            active.first_step_s, prefilled, emitted, ended, num_decoded, self._cached
        )
        self._cached = {}
        self.policy.update(batch, result, end_s)
        return StepOutcome(batch, start_s, end_s, num_steps, finished)

    def status(self, now: float) -> InstanceStatus:
        status = self.policy.status(now)
        self._free_blocks = status.free_blocks
        return status

    def _begin_prefixes(
        self, batch: Batch, left: list[tuple[SimRequest, HandBackReason]]
    ) -> dict[str, int]:
        """Return the cached prompt tokens of new prefills by request id, counted as computed."""
        if self._cache is None:
            return {}
        for record, _ in left:
            self._cache.remove(record.request.request_id)
        cached: dict[str, int] = {}
        for prefill in batch.prefills:
            record = self._records[prefill.request_id]
            if not record.num_computed:
                record.num_computed = self._cache.find(prefill.request_id).num_tokens
                cached[prefill.request_id] = record.num_computed
        return cached

    def _end_prefixes(self, batch: Batch, ended: tuple[str, ...]) -> None:
        """Update the cache by the computed, preempted and ended requests of the batch."""
        if self._cache is None:
            return
        for request_id in batch.preempted:
            self._cache.release(request_id)
        for prefill in batch.prefills:
            computed = self._records[prefill.request_id].num_computed
            self._cache.compute(prefill.request_id, computed)
        for request_id in ended:
            record = self._records[request_id]
            if record.is_open:
                # Keys and values of its last token were never computed.
                self._cache.compute(request_id, record.num_tokens - 1)
            self._cache.remove(request_id)

    def _preempt(self, request_id: str) -> None:
        self._records[request_id].num_computed = 0
        if request_id in self._decoding:
            self._decoding.pop(request_id)
        self._resting.pop(request_id, None)

    def _choose(self, decodes: Sequence[str]) -> None:
        if len(decodes) == len(self._decoding) and not self._resting:
            return
        for record in self._resting.values():
            self._decoding.add(record)
        self._resting = {i: self._decoding.pop(i) for i in self._decoding.others(decodes)}

    def _run(self, batch: Batch, now: float) -> ActiveBatch:
        if batch.decodes:
            self._choose(batch.decodes)
            self._decoding.begin(now)
        return ActiveBatch(batch, now, self._ends_s(batch, now))

    def _ends_s(self, batch: Batch, now: float) -> list[float]:
        prefills, num_decodes, context, hidden = self._contents(batch)
        if self._pipeline is not None:
            stage_s = self._pipeline.stage_s(prefills, num_decodes, context, hidden)
            self._depth_s = (self._pipeline.num_stages - 1) * stage_s
            # It cannot reach the last stage before the previous batch has left it.
            now = max(now, self._drained_s - self._depth_s)
        step_s = self._execution_time_s(prefills, num_decodes, context, hidden)
        num_more = self._num_steps(batch) - 1
        if not num_more:
            return [now + step_s * next(self._noise)]
        # Over this few steps the time grows linearly with the context.
        context += num_more * num_decodes
        hidden += num_more * self._decoding.num_hidden
        growth_s = (
            self._execution_time_s(prefills, num_decodes, context, hidden) - step_s
        ) / num_more
        steps_s = [step_s + growth_s * index for index in range(num_more + 1)]
        return list(accumulate(map(mul, steps_s, self._noise), initial=now))[1:]

    def _contents(self, batch: Batch) -> tuple[list[tuple[int, int]], int, int, int]:
        """Return the arguments of ``ExecutionTimePredictor`` for a batch."""
        prefills = [
            (p.num_tokens, self._records[p.request_id].num_computed) for p in batch.prefills
        ]
        if not batch.decodes:
            return prefills, 0, 0, 0
        decoding = self._decoding
        return prefills, len(batch.decodes), decoding.num_tokens, decoding.num_hidden_tokens

    def _num_steps(self, batch: Batch) -> int:
        """Return how often the same batch is sure to run: until the first response ends, if every
        sequence is sure to find its KV blocks."""
        num_decodes = len(batch.decodes)
        if num_decodes < len(self._records):
            return 1
        if self._decoding.num_hidden and self.policy.config.strategy.chooses_decodes:
            return 1  # any iteration may replace hidden states by keys and values
        blocks_each = self._num_groups * (MAX_RUN_STEPS // self._block_size + 2)
        if num_decodes * blocks_each > self._free_blocks:
            return 1
        return min(self._decoding.num_steps_left, MAX_RUN_STEPS)
