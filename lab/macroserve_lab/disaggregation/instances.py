"""Instances that prefill or decode, whose schedulers hold requests while their KV caches move."""

from dataclasses import replace

from macroserve.core.batch import Batch
from macroserve.core.latency import LatencyModel
from macroserve.core.request import Request
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.scheduler.running import Running
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.core.scheduler.sequence import Sequence, State
from macroserve.core.status import Pool
from macroserve.sim.device import SimRequest
from macroserve.sim.instance import ActiveBatch, InstanceSpec, SimulatedInstance, StepOutcome


class _Prefilled(Running):
    """Running sequences that, once prefilled, hold their memory and are in no batch."""

    def start_decoding(self, seq: Sequence) -> None:
        seq.num_computed = seq.num_prompt
        self.load(seq)


class PrefillScheduler(InstanceScheduler):
    """Scheduler of an instance whose requests decode elsewhere.

    A prefilled request is in the state LOADING until ``finish``, when its cache has arrived.
    """

    def __init__(self, config: InstanceConfig, latency: LatencyModel) -> None:
        super().__init__(config, latency)
        self.running = _Prefilled.of(config, None)

    def _emit(self, seq: Sequence, num_tokens: int, now: float) -> None:
        super()._emit(seq, num_tokens, now)
        if seq.state is State.LOADING:
            seq.emit(num_tokens, now)


class DecodeScheduler(InstanceScheduler):
    """Scheduler of an instance whose requests were prefilled elsewhere.

    A request is in the state LOADING until its cache has arrived.
    """

    def expect(self, request: Request, now: float) -> bool:
        """Reserve memory and a seat for a request; return whether there is room.

        Its prompt counts the first token, which is out (``Request.num_streamed_tokens``).
        """
        running = self.running
        num_blocks = running.blocks.blocks_for(request.num_prompt_tokens + 1)
        if len(running) >= self.config.max_num_seqs or num_blocks > running.blocks.free:
            return False
        refusal = self.add_request(request, now)
        assert refusal is None, "the instance that prefilled it has no more memory"
        seq = self.sequences[request.request_id]
        self.waiting.remove(seq)
        running.admit(seq, num_blocks)
        seq.num_computed = seq.num_prompt
        running.load(seq)
        return True

    def receive(self, request_id: str) -> None:
        """Let an expected request decode from the next batch on: its KV cache has arrived."""
        self.loaded([request_id])
        self.running.start_decoding(self.sequences[request_id])


class PrefillInstance(SimulatedInstance):
    """Instance whose requests decode elsewhere.

    departing: Requests whose prefill has ended, until the simulation takes them.
    """

    def __init__(self, name: str, spec: InstanceSpec) -> None:
        super().__init__(name, Pool.HP, spec)
        self.policy = PrefillScheduler(self.policy.config, self.policy.latency)
        self.departing: list[SimRequest] = []

    def advance_to(self, now: float) -> StepOutcome | None:
        outcome = super().advance_to(now)
        self.departing += [self._decoding.pop(request_id) for request_id in [*self._decoding]]
        return outcome

    def release(self, record: SimRequest) -> None:
        """Drop a request whose KV cache has arrived elsewhere."""
        self.policy.finish(record.request.request_id)
        del self._records[record.request.request_id]


class DecodeInstance(SimulatedInstance):
    """Instance whose requests were prefilled elsewhere."""

    def __init__(self, name: str, spec: InstanceSpec) -> None:
        super().__init__(name, Pool.LP, spec)
        self._scheduler = DecodeScheduler(self.policy.config, self.policy.latency)
        self.policy = self._scheduler
        self._arrived: list[SimRequest] = []

    def expect(self, record: SimRequest, now: float) -> bool:
        """Reserve memory for a request; return whether it fits."""
        request = record.request
        known = replace(
            request,
            num_prompt_tokens=record.num_tokens,
            max_new_tokens=request.max_new_tokens - record.num_emitted,
            num_streamed_tokens=record.num_emitted,
            expected_tokens=None,
        )
        if not self._scheduler.expect(known, now):
            return False
        self._records[request.request_id] = record
        return True

    def receive(self, record: SimRequest) -> None:
        """Take a KV cache, and truncate the active batch, which was advanced to now."""
        self._scheduler.receive(record.request.request_id)
        self._arrived.append(record)
        if self.active is not None:
            self.active.truncate()

    def _run(self, batch: Batch, now: float) -> ActiveBatch:
        for record in self._arrived:
            self._decoding.add(record)
        self._arrived.clear()
        return super()._run(batch, now)
