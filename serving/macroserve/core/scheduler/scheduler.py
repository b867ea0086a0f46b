"""The instance scheduler: requests in, one batch per iteration out.

    batch = scheduler.schedule(now)         # decide the next batch
    result = executor.run(batch)            # vLLM, the emulated executor or the simulator
    scheduler.update(batch, result, now)    # apply the result

An engine that starts a batch before the previous one has ended reports each batch twice:

    scheduler.promise(batch, taken)         # the part that it started, at once
    scheduler.settle(finished, more, now)   # the difference to that part, at the end

The next batch is then decided as if those in flight had ended as expected. The scheduler is a plain
synchronous object: requests may come and go between any two calls.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import cache, partial

from macroserve.core.batch import Batch, BatchKind, BatchResult, HandBackReason, HandedBack
from macroserve.core.latency import LatencyModel, Work
from macroserve.core.request import Request
from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.blocks import EngineCache
from macroserve.core.scheduler.candidates import Candidates, due_to_offload
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.scheduler.estimators import (
    Averages,
    Inflow,
    LengthPredictor,
    PrefillPace,
    PromptRate,
)
from macroserve.core.scheduler.in_flight import Flight, InFlight
from macroserve.core.scheduler.iteration import IterationInputs, Plan, turn_of
from macroserve.core.scheduler.late_requests import (
    beyond_bound,
    credit_late_requests,
    late_s_per_token,
)
from macroserve.core.scheduler.prompt_costs import PromptCosts, memory_cost_s
from macroserve.core.scheduler.repeated_plan import RepeatedPlan
from macroserve.core.scheduler.running import Running
from macroserve.core.scheduler.sequence import Sequence, State
from macroserve.core.scheduler.snapshot import PhaseRecord, Tally, snapshot
from macroserve.core.scheduler.waiting import WaitingQueue
from macroserve.core.status import InstanceStatus, Phase, Pool


class Refusal(StrEnum):
    """Reason why an instance can never run a request."""

    TOO_LONG = "its prompt leaves no room for a response within the model's length"
    NEVER_FITS = "its prompt and longest response exceed the KV cache"
    DUPLICATE = "a request with this ID is already running"


class InstanceScheduler:
    """Queue, KV ledger and batching policy of one instance.

    Other modules read its parts; only its methods change them.

    latency: learns from every batch that runs as planned.
    cache: the engine's record of its blocks, if it has one.
    """

    def __init__(
        self, config: InstanceConfig, latency: LatencyModel, cache: EngineCache | None = None
    ) -> None:
        self.config = config
        self.latency = latency
        self._cache = cache
        self.sequences: dict[str, Sequence] = {}
        """Requests that wait or run, by id."""
        self.waiting = WaitingQueue(config.strategy.ordering)
        self.running = Running.of(config, cache)
        self.lengths = LengthPredictor()
        self._inflow = Inflow()
        self._timely = PromptRate()
        """Of requests that were not late when they came."""
        self._prefill_pace = PrefillPace()
        self._tally = Tally()
        self._num_added = 0
        self._draining = False
        self._may_offload = True
        self.averages = Averages()
        self._costs = PromptCosts(latency, config.max_batch_tokens, self.averages, cache)
        self._phase = PhaseRecord()
        self._reported: tuple[Phase, bool, bool] | None = None
        """What the last status said of ``_news``."""
        self._prefilled_s = 0.0
        self._planned: tuple[Batch, Work, float, Callable[[int], Work]] | None = None
        self.in_flight = InFlight()
        """Batches in flight, where the engine reports each batch twice."""
        self._repeated = RepeatedPlan()

    # -- requests in and out

    def add_request(self, request: Request, now: float) -> Refusal | None:
        """Add a request to the queue; return the reason if this instance could never run it.

        ``max_new_tokens`` excludes tokens streamed by an earlier instance.
        """
        if refusal := self.refusal(request):
            return refusal
        expected = self.lengths.predict(request)
        self._repeated.end()
        memory_s = memory_cost_s(request, expected, self.running, self.waiting, self.latency)
        sure = self.lengths.at_least(request)
        seq = Sequence(request, self._num_added, now, expected, 0.0, 0.0, memory_s, sure)
        self._costs.arrive(seq)
        self._num_added += 1
        self._inflow.add(request.num_prompt_tokens + expected, request.slo.ttft_s, now)
        if not seq.is_late(now):
            self._timely.add(request.num_prompt_tokens, now)
        self.sequences[request.request_id] = seq
        self.waiting.add(seq)
        self._phase.prefill_s += seq.prefill_s
        self._tally.admit(request)
        return None

    def refusal(self, request: Request) -> Refusal | None:
        """Return the reason why this instance could never run a request, if there is one."""
        blocks = self.running.blocks
        if request.request_id in self.sequences:
            return Refusal.DUPLICATE
        if request.num_prompt_tokens >= self.config.max_model_len:
            return Refusal.TOO_LONG
        longest = request.num_prompt_tokens + request.max_new_tokens
        if blocks.blocks_for(longest) > blocks.num_blocks:
            return Refusal.NEVER_FITS
        return None

    def finish(self, request_id: str) -> None:
        """End a request that ended elsewhere or whose client left; ignore unknown ids."""
        if seq := self.sequences.get(request_id):
            self._end(seq)

    def set_pool(self, pool: Pool) -> None:
        self.config = replace(self.config, pool=pool)
        self._repeated.end()

    def let_offload(self, allowed: bool) -> None:
        """Set whether the cell has an HP instance for offloaded requests."""
        self._may_offload = allowed
        self._repeated.end()

    def drain(self, draining: bool = True) -> None:
        """Start or stop draining: the next batch hands back requests that have not started, the
        others end here."""
        self._draining = draining
        self._repeated.end()

    def loaded(self, request_ids: Iterable[str]) -> None:
        """Continue requests whose blocks the engine has loaded (``BatchResult.loading``); other ids
        are ignored."""
        self._repeated.end()
        for request_id in request_ids:
            if seq := self.running.loading.get(request_id):
                self.running.loaded(seq)

    # -- one iteration

    def schedule(self, now: float) -> Batch:
        """Decide the next batch. An idle batch may also have preemptions and hand-backs."""
        decided_s, now = now, max(now, self.in_flight.ends_s)
        handed_back = self._give_up(now)  # which ends the repetition, if any leaves
        if len(self.running) < self.config.max_num_seqs:
            self._costs.renew(self.waiting)
        if again := self._repeated.again(self.running, self.latency):
            self._planned = *again, decided_s, lambda _: again[1]
            return again[0]
        preempted = self._costs.wait_again(self.running.make_room(), self.waiting)
        decoding = self.running.decoding
        turn = turn_of(decoding, self.latency, now, may_rest=self.config.strategy.rests)
        inputs = IterationInputs(
            now=now,
            config=self.config,
            latency=self.latency,
            lengths=self.lengths,
            waiting=self.waiting,
            running=self.running,
            phase=self._phase.current,
            phase_since_s=self._phase.since_s,
            prefilled_s=self._prefilled_s,
            pace_s=self.averages.pace_s / decoding.speculation.emitted,
            turn=turn,
            decode_s=turn.step_s(self.latency, decoding.speculation.drafted),
            inflow=self._inflow,
            preempted=preempted,
            cache=self._cache,
        )
        candidates = Candidates(inputs)
        plan = self.config.strategy.batch(inputs, Admission(inputs, candidates))
        if plan.preempted:
            left_out = self._costs.wait_again(self.running.make_room(plan.preempted), self.waiting)
            plan, preempted = plan.without(left_out), preempted + left_out
        self._admit(plan, inputs)
        if may_offload := self._may_offload and self.config.offloads:
            leaving = due_to_offload(inputs, candidates)
            handed_back += self._hand_back(leaving, HandBackReason.OFFLOAD)
        work = inputs.work(plan)
        batch = plan.to_batch(preempted, handed_back, self.latency.predict(work))
        self._enter(batch, inputs, plan)
        self._repeated.begin(plan, batch, inputs, may_offload=may_offload)
        if batch.kind is BatchKind.IDLE:
            self._tally.iterations += 1
            self.running.blocks.check()  # the instance has time while idle
        self._planned = batch, work, decided_s, partial(inputs.work, plan)
        return batch

    def promise(self, batch: Batch, taken: BatchResult) -> None:
        """Count the part of the last batch that the engine has started as if it had ended.

        taken: prompt tokens that it computes, and tokens that it emits unless a request ends first.
        """
        assert self._planned and self._planned[0] is batch, "the last batch decided"
        _, work, decided_s, work_of = self._planned
        work = work_of(taken.drafted) if self.config.num_drafts else work
        flight = self.in_flight.begin(batch, taken, work, decided_s)
        flight.expected_gap_s = flight.ends_s - self.running.decoding.last_step_s
        flight.first = self._progress(batch, taken, flight.ends_s)
        flight.num_added = self.running.decoding.num_added

    def settle(self, finished: Iterable[str], more: Mapping[str, int], now: float) -> None:
        """Apply the result of the oldest batch in flight.

        finished: ids of the requests that ended with it, in order of processing.
        more: tokens in excess of the promised ones, by request id; negative if there were fewer.
        """
        flight = self.in_flight.end(now)
        self._tally.iterations += 1
        self._take_time(flight.batch, flight.work, flight.taken, flight.elapsed_s)
        self._correct_times(flight, now)
        if self.config.num_drafts:
            self.running.decoding.speculation.observe(flight, more, self.sequences)
        if more:
            self._repeated.end()
        for request_id, num_tokens in more.items():
            if seq := self.sequences.get(request_id):
                self._correct_tokens(seq, num_tokens)
        self._finish(finished, now)

    def update(self, batch: Batch, result: BatchResult, now: float) -> None:
        """Apply the executor's result of ``batch``, which may contain less than planned."""
        self._tally.iterations += 1
        if self._planned and self._planned[0] is batch:
            self._take_time(batch, self._planned[1], result, result.elapsed_s)
            self._planned = None
        self._progress(batch, result, now)
        self._finish(result.finished, now)

    @property
    def has_news(self) -> bool:
        """Return whether the cell should know at once what has happened since the last status: an
        admission, another phase, or the start or end of work or of a drain."""
        return bool(self._tally.admitted) or not self.sequences or self._reported != self._news

    @property
    def _news(self) -> tuple[Phase, bool, bool]:
        return self._phase.current, self._draining, not self.sequences

    def status(self, now: float) -> InstanceStatus:
        """Return a report for the cell scheduler, with the ids admitted since the last one."""
        self._reported = self._news
        return snapshot(
            now,
            self.config,
            self.waiting,
            self.running,
            self.latency,
            self._tally,
            self._prefill_pace,
            self._phase,
            self.averages.steps,
            draining=self._draining,
        )

    # -- parts of an iteration

    def _give_up(self, now: float) -> list[HandedBack]:
        """Hand back waiting requests: all while draining, else the late ones that are refused."""
        if self._draining:
            leaving = [seq for seq in self.waiting if not seq.started]
            return self._hand_back(leaving, HandBackReason.DRAIN)
        if self.config.drop_late:
            refused = self.waiting.late(now)
        elif self.config.strategy.triage and self.waiting.overdue_from_s <= now:
            refused = self._wait_too_long(now)
        else:
            return []
        for seq in refused:
            self._tally.end(seq.request, attained=False)
        return self._hand_back(refused, HandBackReason.DROP)

    def _wait_too_long(self, now: float) -> list[Sequence]:
        """Return the overdue requests that would wait longer than allowed."""
        num_batch_tokens = self.config.max_batch_tokens
        full_s_per_token = self.latency.prefill_s(num_batch_tokens) / num_batch_tokens
        pace_s = self._prefill_pace.s_per_token(full_s_per_token)

        @cache
        def s_per_token(ttft_s: float) -> float:
            return late_s_per_token(pace_s, self._timely.tokens_per_s(ttft_s, now))

        begun = [seq for seq in self.running.prefilling.values() if seq.is_late(now)]
        num_begun = sum([seq.num_to_prefill for seq in begun])
        late, bound_s = self.waiting.late(now), self.config.max_late_wait_s
        return beyond_bound(late, now, num_begun, s_per_token, bound_s)

    def _hand_back(self, leaving: list[Sequence], reason: HandBackReason) -> list[HandedBack]:
        for seq in leaving:
            self._end(seq)
        return [HandedBack(seq.request_id, reason) for seq in leaving]

    def _admit(self, plan: Plan, inputs: IterationInputs) -> None:
        for pick in plan.picks:
            seq = pick.seq
            if seq.state is State.WAITING:
                self.waiting.remove(seq)
                seq.count_cached(pick.num_before)
                self._tally.prompt_tokens += 0 if seq.request.probe else seq.num_prompt
                self.running.admit(seq, pick.num_blocks, pick.cache, pick.num_shared)
        for seq, num_blocks, lender in plan.resumes:
            self.running.resume(seq, num_blocks, lender)
        if plan.picks:
            self._prefilled_s = inputs.now
            credit_late_requests(inputs, plan.picks)

    def _enter(self, batch: Batch, inputs: IterationInputs, plan: Plan) -> None:
        """Update the phase and, while prompts wait for time rather than memory or a seat, the
        prefills' share of time."""
        self._phase.enter(batch.kind, self.waiting.prefill_s, inputs.now)
        if self.waiting and batch.predicted_s and (plan.picks or plan.slack_exhausted):
            decode_s = inputs.decode_s if batch.decodes else 0.0
            self.averages.observe_share(decode_s, batch.predicted_s)

    def _take_time(self, batch: Batch, work: Work, result: BatchResult, elapsed_s: float) -> None:
        """Learn from the time of a batch; the latency model learns if it ran as planned."""
        if all(result.prefilled.get(p.request_id) == p.num_tokens for p in batch.prefills):
            self.latency.observe(work, elapsed_s)
            self.averages.steps.observe(batch.predicted_s, elapsed_s)
        if batch.prefills or self.waiting:
            self._prefill_pace.observe(sum(result.prefilled.values()), elapsed_s)

    def _progress(self, batch: Batch, result: BatchResult, now: float) -> list[Sequence]:
        """Count the tokens of a batch; return the sequences that emit their first token."""
        self.running.blocks.read_again()
        self._repeated.observe(result)
        if batch.decodes:
            self.averages.observe_decodes(batch.predicted_s, max(1, result.decoded))
        if result.decoded:
            self._advance(batch, result, now)
        self._tally.cached_tokens += sum(result.cached.values())
        for complete in self.running.prefill(result.prefilled, result.cached):
            self.running.start_decoding(complete)
        for request_id in result.loading:
            self.running.load(self.running.prefilling[request_id])
        first: list[Sequence] = []
        for request_id, num_tokens in result.emitted.items():
            if seq := self.sequences.get(request_id):
                if num_tokens and not seq.num_emitted:
                    first.append(seq)
                self._emit(seq, num_tokens, now)
        return first

    def _advance(self, batch: Batch, result: BatchResult, now: float) -> None:
        """Count the tokens of the batch's decodes, except those listed in ``result.emitted``."""
        decoding = self.running.decoding
        excluded = [request_id for request_id in result.emitted if request_id in decoding]
        if not decoding.are_all(batch.decodes):
            decodes = {*batch.decodes, *excluded}
            excluded += [request_id for request_id in decoding if request_id not in decodes]
        for seq in decoding.emit(result.decoded, now, excluded):
            self._outgrow(seq)

    def _emit(self, seq: Sequence, num_tokens: int, now: float) -> None:
        decoding = self.running.decoding
        if seq.state is State.PREFILLING and num_tokens:
            self.running.start_decoding(seq)  # the first token shows that the prefill is complete
        if seq.state is State.PAUSED:
            seq.emit(num_tokens, now)
            if seq.num_tokens >= seq.most_tokens:
                self.running.complete(seq)
        elif seq.state is State.DECODING and decoding.change(seq, seq.emit, num_tokens, now):
            self._outgrow(seq)

    def _correct_times(self, flight: Flight, now: float) -> None:
        """Correct the times of tokens promised by a batch that ended ``now``."""
        decoding = self.running.decoding
        if flight.taken.decoded:
            decoding.correct_step(flight.expected_gap_s, flight.gap_s, flight.num_added)
            decoding.last_step_s = self.in_flight.decoded_s
        for seq in flight.first:
            if seq.request_id in decoding:
                decoding.change(seq, seq.correct_first_token, now)
            else:
                seq.correct_first_token(now)

    def _correct_tokens(self, seq: Sequence, num_tokens: int) -> None:
        """Count a sequence's tokens in excess of the promised ones; negative if fewer came."""
        if seq.state is State.DECODING:
            if self.running.decoding.change(seq, seq.correct_tokens, num_tokens):
                self._outgrow(seq)
        elif seq.state is State.WAITING:
            # It lost its cache while the tokens were in flight: they must be recomputed.
            self.waiting.remove(seq)
            seq.correct_tokens(num_tokens)
            seq.forget_cache()
            self._costs.come_back(seq)
            self.waiting.add(seq)
        else:
            seq.correct_tokens(num_tokens)
            if seq.state is State.PAUSED and seq.num_tokens >= seq.most_tokens:
                self.running.complete(seq)

    def _outgrow(self, seq: Sequence) -> None:
        """Predict a longer response for a sequence at its expected length, or complete it at its
        limit."""
        self._repeated.end()
        if seq.num_tokens >= seq.most_tokens:
            if seq.state is State.DECODING:
                self.running.complete(seq)
            return
        expected = self.lengths.predict(seq.request, seq.num_emitted)
        self.running.decoding.expect(seq, expected)

    def _finish(self, finished: Iterable[str], now: float) -> None:
        """End the requests that the engine ended."""
        for request_id in finished:
            seq = self.sequences.get(request_id)
            if seq and seq.started:
                self._end(seq)
                if seq.request.probe:
                    continue
                seq.num_emitted -= self.in_flight.tokens_of(request_id)
                self.lengths.observe(seq.request, seq.num_emitted)
                self._tally.end(seq.request, attained=seq.attained(now))

    def _end(self, seq: Sequence) -> None:
        self._repeated.end()
        del self.sequences[seq.request_id]
        if seq.state is State.WAITING:
            self.waiting.remove(seq)
            seq.move(State.FINISHED)
        else:
            self.running.remove(seq, State.FINISHED)
