"""The instance scheduler turns requests into batches, one iteration at a time.

    batch = scheduler.schedule(now)         # what runs next
    result = executor.run(batch)            # vLLM, the emulated executor or the simulator
    scheduler.update(batch, result, now)    # take in the result

The scheduler is a plain synchronous object. Requests may be added and finished between any two
calls.
"""

from dataclasses import replace
from enum import StrEnum

from macroserve.core.batch import Batch, BatchKind, BatchResult, HandBackReason, HandedBack, Prefill
from macroserve.core.latency import LatencyModel, Work
from macroserve.core.request import Request
from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.candidates import Candidates
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.scheduler.estimators import Inflow, LengthPredictor
from macroserve.core.scheduler.iteration import IterationInputs, Pick, Plan
from macroserve.core.scheduler.offload import due_to_offload
from macroserve.core.scheduler.prefill_pace import PrefillPace
from macroserve.core.scheduler.running import Running
from macroserve.core.scheduler.sequence import Sequence, State
from macroserve.core.scheduler.snapshot import Tally, snapshot
from macroserve.core.scheduler.waiting import WaitingQueue
from macroserve.core.status import InstanceStatus, Phase, Pool

WINDOW_S = 5.0
"""Time constant of the averages of the prefills' share of time and of the decodes' pace,
seconds."""

SHARE_FLOOR = 0.1
"""Least share of time assumed for prefills, so that a prompt's cost has a bound."""


class Refusal(StrEnum):
    """The reason tells why an instance does not take a request."""

    TOO_LONG = "its prompt leaves no room for a response within the model's length"
    NEVER_FITS = "its prompt and longest response exceed the KV cache"
    DUPLICATE = "a request of that id is here already"


class InstanceScheduler:
    """The scheduler owns one instance's queue, KV ledger and policy.

    latency: predicts batches, and learns from every batch that ran as planned.

    Attributes:
        sequences: requests that wait or run, by id; others read the parts below, but change none.
        pace_s: recent mean time per token of the decodes, seconds.
    """

    def __init__(self, config: InstanceConfig, latency: LatencyModel) -> None:
        self.config = config
        self.latency = latency
        self.sequences: dict[str, Sequence] = {}
        self.waiting = WaitingQueue(config.strategy.ordering)
        self.running = Running(
            config.num_blocks,
            config.block_size,
            pause_when_full=config.strategy.exact_kv,
            queue_responses=config.strategy.queues_responses,
            hidden_states_per_block=config.hidden_states_per_block
            if config.strategy.keeps_hidden
            else None,
        )
        self.lengths = LengthPredictor()
        self._inflow = Inflow()
        self._prefill_pace = PrefillPace()
        self._tally = Tally()
        self._num_added = 0
        self._draining = False
        self._may_offload = True
        self._phase = Phase.IDLE
        self._phase_since_s = 0.0
        self._phase_prefill_s = 0.0
        self._prefill_share = 0.5
        self.pace_s = 0.0
        self._prefilled_s = 0.0
        self._in_flight: tuple[Batch, Work] | None = None

    # -- requests in and out

    def add_request(self, request: Request, now: float) -> Refusal | None:
        """Add a request to the queue; return the reason if this instance could never run it.

        ``max_new_tokens`` counts from here, without the tokens streamed by an earlier instance.
        """
        num_prompt, blocks = request.num_prompt_tokens, self.running.blocks
        if request.request_id in self.sequences:
            return Refusal.DUPLICATE
        if num_prompt >= self.config.max_model_len:
            return Refusal.TOO_LONG
        if blocks.blocks_for(num_prompt + request.max_new_tokens) > blocks.num_blocks:
            return Refusal.NEVER_FITS
        expected = self.lengths.predict(request)
        prefill_s = self._prefill_s(num_prompt)
        service_s = prefill_s / self._prefill_share
        cost_s = max(service_s, self._memory_s(request, expected))
        sure = self.lengths.at_least(request)
        seq = Sequence(request, self._num_added, expected, prefill_s, service_s, cost_s, sure)
        self._num_added += 1
        self._inflow.add(num_prompt + expected, now)
        self.sequences[request.request_id] = seq
        self.waiting.add(seq)
        self._phase_prefill_s += prefill_s
        self._tally.admit(request)
        return None

    def finish(self, request_id: str) -> None:
        """End a request and free its blocks: it ended elsewhere, or its client left. Unknown ids
        are ignored."""
        if seq := self.sequences.get(request_id):
            self._end(seq)

    def set_pool(self, pool: Pool) -> None:
        self.config = replace(self.config, pool=pool)

    def let_offload(self, allowed: bool) -> None:
        """Set whether the cell has an HP instance that takes offloaded requests."""
        self._may_offload = allowed

    def drain(self, draining: bool = True) -> None:
        """Start draining the instance, or stop doing so.

        From the next batch on, requests that have not started are handed back; the others end here.
        """
        self._draining = draining

    # -- requests whose KV moves (DistServe, MoonCake)

    @property
    def sends(self) -> bool:
        """Return whether prefilled requests decode on another instance."""
        return self.config.strategy.moves_kv and self.config.pool is Pool.HP

    def expect(self, request: Request) -> bool:
        """Reserve memory and a seat for a request that another instance prefills; return whether
        there is room.

        Its prompt counts the first token, which is out (``Request.num_streamed_tokens``).
        """
        running, blocks = self.running, self.running.blocks
        num_blocks = blocks.blocks_for(request.num_prompt_tokens + 1)
        if len(running) >= self.config.max_num_seqs or num_blocks > blocks.free:
            return False
        seq = Sequence(request, self._num_added, self.lengths.predict(request), 0.0, 0.0, 0.0)
        self._num_added += 1
        self.sequences[request.request_id] = seq
        running.reserve(seq, num_blocks)
        self._tally.admit(request)
        return True

    def receive(self, request_id: str) -> None:
        """Let an expected request decode from the next batch on: its KV cache has arrived."""
        self.running.receive(self.running.moving[request_id])

    # -- one iteration

    def schedule(self, now: float) -> Batch:
        """Decide the next iteration. Preemptions and hand-backs hold for an idle batch as well."""
        handed_back = self._give_up(now)
        preempted = self.running.make_room()
        for seq in preempted:
            seq.prefill_s = self._prefill_s(seq.num_prompt)
            self.waiting.add(seq)
        inputs = IterationInputs(
            now=now,
            config=self.config,
            latency=self.latency,
            lengths=self.lengths,
            waiting=self.waiting,
            running=self.running,
            phase=self._phase,
            phase_since_s=self._phase_since_s,
            prefilled_s=self._prefilled_s,
            pace_s=self.pace_s,
            decode_s=self.running.decoding.step_s(self.latency),
            inflow_tokens_per_s=self._inflow.tokens_per_s(now),
            preempted=preempted,
        )
        candidates = Candidates(inputs)
        plan: Plan = self.config.strategy.batch(inputs, Admission(inputs, candidates))
        self._admit(plan, now)
        if self._offloads and self.waiting:
            leaving = due_to_offload(inputs, candidates)
            handed_back += self._hand_back(leaving, HandBackReason.OFFLOAD)
        work = inputs.work(plan)
        batch = Batch(
            plan.kind,
            tuple([_prefill(pick) for pick in plan.picks]),
            plan.decodes,
            tuple([seq.request_id for seq in preempted]),
            tuple(handed_back),
            self.latency.predict(work),
            plan.reason,
        )
        self._enter(batch, inputs, plan)
        if batch.kind is BatchKind.IDLE:
            self._tally.iterations += 1
            self.running.blocks.check()  # an idle instance has time for it
        self._in_flight = batch, work
        return batch

    def update(self, batch: Batch, result: BatchResult, now: float) -> None:
        """Take in the executor's result of ``batch``; it may contain less than was asked."""
        self._tally.iterations += 1
        self._learn(batch, result)
        if batch.prefills or self.waiting:
            self._prefill_pace.observe(sum(result.prefilled.values()), result.elapsed_s)
        running = self.running
        if batch.decodes:
            self._keep_pace(batch.predicted_s, max(1, result.decoded))
        if result.decoded:
            self._advance(batch, result, now)
        for request_id, num_tokens in result.prefilled.items():
            if seq := running.prefilling.get(request_id):
                seq.num_computed = min(seq.num_computed + num_tokens, seq.num_prompt)
                if seq.num_computed == seq.num_prompt:
                    self._start_decoding(seq)
        for request_id, num_tokens in result.emitted.items():
            seq = self.sequences.get(request_id)
            if seq is None:
                continue
            if seq.state is State.PREFILLING and num_tokens:
                self._start_decoding(seq)  # the first token shows that the prefill is complete
            if seq.state in (State.MOVING, State.PAUSED):
                seq.emit(num_tokens, now)
            elif seq.state is State.DECODING and running.decoding.emit_one(seq, num_tokens, now):
                self._expect_more(seq)
        for request_id in result.finished:
            seq = self.sequences.get(request_id)
            if seq and seq.state is not State.WAITING:
                self._end(seq)
                if seq.request.probe:
                    continue
                self.lengths.observe(seq.request, seq.num_emitted)
                self._tally.finished += 1
                self._tally.attained += seq.attained(now)

    def status(self, now: float) -> InstanceStatus:
        """Return a snapshot for the cell scheduler, with the ids taken in since the last one."""
        return snapshot(
            now,
            self.waiting,
            self.running,
            self.latency,
            self._tally,
            self._prefill_pace,
            phase=self._phase,
            phase_prefill_s=self._phase_prefill_s,
            max_batch_tokens=self.config.max_batch_tokens,
            draining=self._draining,
        )

    # -- parts of an iteration

    def _give_up(self, now: float) -> list[HandedBack]:
        """Hand back all waiting requests of a draining instance, or the late ones if they are
        dropped."""
        if self._draining:
            leaving = [seq for seq in self.waiting if not seq.started]
            return self._hand_back(leaving, HandBackReason.DRAIN)
        if self.config.drop_late:
            num_late = self.waiting.num_due_before(now)
            late = self.waiting.by_deadline.seqs[:num_late]
            self._tally.finished += num_late
            return self._hand_back(late, HandBackReason.DROP)
        return []

    @property
    def _offloads(self) -> bool:
        """Return whether waiting requests may leave for an HP instance."""
        config = self.config
        return config.strategy.offload and self._may_offload and config.pool is not Pool.HP

    def _hand_back(self, leaving: list[Sequence], reason: HandBackReason) -> list[HandedBack]:
        for seq in leaving:
            self._end(seq)
        return [HandedBack(seq.request_id, reason) for seq in leaving]

    def _admit(self, plan: Plan, now: float) -> None:
        for seq, _, num_blocks, cache in plan.picks:
            if seq.state is State.WAITING:
                self.waiting.remove(seq)
                self.running.admit(seq, num_blocks, cache)
        for seq, num_blocks, lender in plan.resumes:
            self.running.resume(seq, num_blocks, lender)
        if plan.picks:
            self._prefilled_s = now
            self._keep_promise(plan, now)

    def _keep_promise(self, plan: Plan, now: float) -> None:
        """Credit late requests with a share of the prefilled tokens, for as long as there are
        any."""
        begun = self.running.prefilling.values()
        if self.waiting.num_due_before(now) or any(seq.is_late(now) for seq in begun):
            late = [pick.num_tokens for pick in plan.picks if pick.seq.is_late(now)]
            self.waiting.promise(sum([pick.num_tokens for pick in plan.picks]), sum(late))
        else:
            self.waiting.promised_tokens = 0.0

    def _enter(self, batch: Batch, inputs: IterationInputs, plan: Plan) -> None:
        """Update the phase, and the prefills' share of time while prompts wait for time, not for
        memory or a seat."""
        phase = Phase(batch.kind.value)
        if phase is not self._phase:
            self._phase, self._phase_since_s = phase, inputs.now
            if phase in (Phase.DECODE, Phase.IDLE):
                self._phase_prefill_s = 0.0
        if phase is Phase.MIXED:  # no phases, so all waiting prefills are pending
            self._phase_prefill_s = self.waiting.prefill_s
        if self.waiting and batch.predicted_s and (plan.picks or plan.slack_exhausted):
            decode_s = inputs.decode_s if batch.decodes else 0.0
            share = max(0.0, 1 - decode_s / batch.predicted_s)
            weight = batch.predicted_s / (batch.predicted_s + WINDOW_S)
            self._prefill_share += weight * (max(share, SHARE_FLOOR) - self._prefill_share)

    def _learn(self, batch: Batch, result: BatchResult) -> None:
        """Teach the latency model, if this is the batch last planned and it ran as planned."""
        if self._in_flight and self._in_flight[0] is batch:
            work, self._in_flight = self._in_flight[1], None
            if all(result.prefilled.get(p.request_id) == p.num_tokens for p in batch.prefills):
                self.latency.observe(work, result.elapsed_s)

    def _keep_pace(self, step_s: float, num_steps: int) -> None:
        """Update the mean time per token of the decodes."""
        older = (WINDOW_S / (step_s + WINDOW_S)) ** num_steps
        self.pace_s = older * self.pace_s + (1 - older) * step_s

    def _start_decoding(self, seq: Sequence) -> None:
        """Let a prefilled sequence decode here, or on another instance if the strategy moves KV
        caches."""
        if self.sends:
            self.running.send(seq)
        else:
            self.running.start_decoding(seq)

    def _advance(self, batch: Batch, result: BatchResult, now: float) -> None:
        """Give the batch's decodes their tokens, except those that the result names."""
        decoding = self.running.decoding
        apart = [request_id for request_id in result.emitted if request_id in decoding]
        if len(decoding) != len(batch.decodes):
            decodes = {*batch.decodes, *apart}
            apart += [request_id for request_id in decoding if request_id not in decodes]
        for seq in decoding.emit(result.decoded, now, apart):
            self._expect_more(seq)

    def _expect_more(self, seq: Sequence) -> None:
        expected = self.lengths.predict(seq.request, seq.num_emitted)
        self.running.decoding.expect(seq, expected)

    def _end(self, seq: Sequence) -> None:
        del self.sequences[seq.request_id]
        if seq.state is State.WAITING:
            self.waiting.remove(seq)
            seq.move(State.FINISHED)
        else:
            self.running.remove(seq, State.FINISHED)

    def _prefill_s(self, num_tokens: int) -> float:
        return self.latency.batched_prefill_s(num_tokens, self.config.max_batch_tokens)

    def _memory_s(self, request: Request, num_new_tokens: int) -> float:
        """Return the seconds that others lose by the request's memory for as long as its response
        takes; 0 if there is enough for all that wait."""
        blocks, waiting = self.running.blocks, self.waiting
        num_tokens = request.num_prompt_tokens + num_new_tokens
        claimed = waiting.num_tokens + waiting.predicted_tokens + num_tokens
        if claimed <= blocks.free * blocks.block_size:
            return 0.0
        pool_share = blocks.blocks_for(num_tokens) / blocks.num_blocks
        decoding = self.running.decoding
        work = self.latency.work((), len(decoding), decoding.num_tokens)
        return pool_share * num_new_tokens * self.latency.predict(work)


def _prefill(pick: Pick) -> Prefill:
    return Prefill(pick.seq.request_id, pick.num_tokens, pick.cache is CacheKind.HIDDEN)
