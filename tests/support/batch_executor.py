"""Executors of an instance scheduler's batches, with a separate clock."""

from collections import deque
from dataclasses import replace

from macroserve.core.batch import BatchKind, BatchResult
from macroserve.core.scheduler.batching.baselines import chunked_batch, prefill_first_batch
from macroserve.core.scheduler.batching.ecoserve import ecoserve_batch
from macroserve.core.scheduler.rounds import Rounds


def tokens_of(batch, result):
    """Return the tokens of each request of a batch."""
    usual = dict.fromkeys(batch.decodes, result.decoded)
    return {**usual, **result.emitted}


class Executor:
    """An executor that checks each batch against the scheduler's contract.

    Every request must end once: finished, handed back, or finished from outside.

    lengths: tokens of each response.
    shortfalls: for each of the next iterations, the tokens by which prefills fall short, and
        whether decodes are skipped; later ones run completely.
    names_every: every ``names_every``-th batch reports the decoded tokens by request.
    """

    def __init__(self, scheduler, lengths, *, slowdown=1.0, shortfalls=(), names_every=3):
        self.scheduler = self.decider = scheduler
        self.lengths = lengths
        self.slowdown = slowdown
        self.shortfalls = list(shortfalls)
        self.names_every = names_every
        self.now = 0.0
        self.requests = {}
        self.computed = {}
        self.emitted = {}
        self.seen = {}
        self.hidden = set()
        self.first_token_s = {}
        self.last_token_s = {}
        self.ended = {}
        self.batches = []

    def add(self, request):
        refusal = self.scheduler.add_request(request, self.now)
        if refusal is None:
            assert request.request_id not in self.requests, "added twice"
            self.requests[request.request_id] = request
            self.computed[request.request_id] = 0
            self.emitted[request.request_id] = self.seen[request.request_id] = 0
        return refusal

    def finish(self, request_id):
        self.scheduler.finish(request_id)
        if request_id in self.requests and request_id not in self.ended:
            self.end(request_id, "aborted")
        self.check_blocks()

    def end(self, request_id, how):
        assert request_id not in self.ended, f"{request_id} ended twice"
        self.ended[request_id] = how

    @property
    def alive(self):
        return [i for i in self.requests if i not in self.ended]

    @property
    def could_run(self):
        """Requests that the next batch may contain."""
        return self.alive

    def to_prefill(self, request_id):
        """Return the tokens to compute before the next one is emitted, earlier emitted ones
        included."""
        known = self.requests[request_id].num_prompt_tokens + self.emitted[request_id]
        return known - self.computed[request_id]

    def step(self):
        batch = self.decider.schedule(self.now)
        self.batches.append(batch)
        for item in batch.handed_back:
            assert self.computed[item.request_id] == 0 and self.emitted[item.request_id] == 0
            self.end(item.request_id, item.reason.value)
        for request_id in batch.preempted:
            self.computed[request_id] = 0
        for prefill in batch.prefills:
            if self.computed[prefill.request_id]:
                assert prefill.hidden == (prefill.request_id in self.hidden), "changed midway"
            (self.hidden.add if prefill.hidden else self.hidden.discard)(prefill.request_id)
        self.check_batch(batch)
        missing, skip_decodes = self.shortfalls.pop(0) if self.shortfalls else (0, False)
        self.run(batch, missing, skip_decodes)
        self.check_blocks()
        return batch

    def elapsed_s(self, batch):
        return max(batch.predicted_s, 1e-4) * self.slowdown

    def run(self, batch, missing, skip_decodes):
        self.now += self.elapsed_s(batch)
        result = self.take(batch, missing, skip_decodes)
        finished = self.come_out(tokens_of(batch, result))
        self.scheduler.update(batch, replace(result, finished=finished), self.now)

    def take(self, batch, missing, skip_decodes):
        """Compute a batch; return the emitted tokens by request id."""
        prefilled, emitted = {}, {}
        for prefill in reversed(batch.prefills):
            cut = min(missing, prefill.num_tokens)
            missing -= cut
            prefilled[prefill.request_id] = prefill.num_tokens - cut
            self.computed[prefill.request_id] += prefill.num_tokens - cut
            if not self.to_prefill(prefill.request_id):
                emitted[prefill.request_id] = 1
        if not skip_decodes:
            for request_id in batch.decodes:
                self.computed[request_id] += 1
                emitted[request_id] = 1
        for request_id in emitted:
            self.emitted[request_id] += 1
        elapsed_s = self.elapsed_s(batch)
        if skip_decodes or len(self.batches) % self.names_every == 0:  # one by one
            return BatchResult(elapsed_s, prefilled, emitted)
        for request_id in batch.decodes:
            del emitted[request_id]
        return BatchResult(elapsed_s, prefilled, emitted, decoded=1)

    def come_out(self, tokens):
        """Emit tokens; return the requests that end with them."""
        finished = []
        for request_id, num_tokens in tokens.items():
            if not num_tokens or request_id in self.ended:
                continue
            self.seen[request_id] += num_tokens
            self.first_token_s.setdefault(request_id, self.now)
            self.last_token_s[request_id] = self.now
            if self.seen[request_id] == self.lengths[request_id]:
                finished.append(request_id)
                self.end(request_id, "finished")
        return tuple(finished)

    def drain(self, limit=20_000):
        """Run until no request is left."""
        for _ in range(limit):
            if not self.alive:
                break
            self.step()
        assert not self.alive, f"no end after {limit} iterations: {self.alive}"
        self.scheduler.running.blocks.check()
        assert self.scheduler.running.blocks.free == self.scheduler.config.num_blocks

    def check_batch(self, batch):
        config = self.scheduler.config
        ids = [p.request_id for p in batch.prefills] + list(batch.decodes)
        assert len(ids) == len(set(ids)), "one request twice in a batch"
        assert set(ids) <= set(self.alive)
        assert not set(ids) & set(batch.preempted)
        assert len(ids) <= config.max_num_seqs
        assert batch.num_tokens <= config.max_batch_tokens
        if batch.kind is BatchKind.IDLE:
            assert not ids and not self.could_run, f"idle beside {self.could_run}"
        else:
            assert ids and batch.reason and batch.predicted_s > 0
        assert (batch.kind is BatchKind.MIXED) == bool(batch.prefills and batch.decodes)
        if config.strategy.batch in (prefill_first_batch, ecoserve_batch):
            assert batch.kind is not BatchKind.MIXED
        if config.strategy.batch is chunked_batch and batch.prefills:
            assert batch.num_tokens <= config.tuning.chunk_tokens
        for prefill in batch.prefills:
            assert 0 < prefill.num_tokens <= self.to_prefill(prefill.request_id)
        for prefill in batch.prefills[:-1]:
            assert prefill.num_tokens == self.to_prefill(prefill.request_id), "cut before the last"
        for request_id in batch.decodes:
            assert self.to_prefill(request_id) == 1, "decodes follow a whole prompt"
            self.check_room(request_id, 1)
        for prefill in batch.prefills:
            self.check_room(prefill.request_id, prefill.num_tokens)

    def check_room(self, request_id, num_tokens):
        blocks = self.scheduler.running.blocks
        is_hidden = request_id in self.hidden
        slots = self.scheduler.config.hidden_states_per_block if is_hidden else blocks.block_size
        room = blocks.held_by(request_id) * slots
        assert self.computed[request_id] + num_tokens <= room, f"{request_id} outruns its blocks"

    def check_blocks(self):
        running = self.scheduler.running
        running.blocks.check()
        adapters = {seq.request.adapter for seq in running} - {None}
        assert len(adapters) <= (self.scheduler.config.max_adapters or len(adapters))
        held = {seq.request_id for seq in running}
        assert held == {i for i in self.alive if running.blocks.held_by(i)}


class AheadExecutor(Executor):
    """An executor with up to ``ahead`` batches in flight, like vLLM's asynchronous scheduler.

    A request that ends may be in later batches, whose tokens for it are dropped. A preempted
    request's tokens in flight are still emitted, before it resumes.
    """

    def __init__(self, *args, ahead=1, **kwargs):
        super().__init__(*args, **kwargs)
        self.ahead = ahead
        self.flights = deque()
        self.last_end_s = 0.0

    @property
    def in_flight(self):
        """Requests with tokens in flight."""
        return {i for _, _, tokens in self.flights for i, num in tokens.items() if num}

    @property
    def could_run(self):
        # Requests in flight may have the last seat or block.
        return [] if self.flights else self.alive

    def run(self, batch, missing, skip_decodes):
        decided_s, stale = self.now, self.in_flight
        for request_id in batch.decodes:
            left = self.requests[request_id].max_new_tokens - self.emitted[request_id]
            assert left > 0, f"{request_id} is complete"
        waits = [p for p in batch.prefills if p.request_id in stale]
        begins = tuple(p for p in batch.prefills if p.request_id not in stale)
        taken = self.take(replace(batch, prefills=begins), missing, skip_decodes)
        prefilled = {**dict.fromkeys([p.request_id for p in waits], 0), **taken.prefilled}
        taken = replace(taken, prefilled=prefilled)
        self.decider.promise(batch, taken)
        self.flights.append((batch, decided_s, tokens_of(batch, taken)))
        while len(self.flights) > self.ahead:
            self.settle()

    def settle(self):
        batch, decided_s, tokens = self.flights.popleft()
        self.last_end_s = max(decided_s, self.last_end_s) + self.elapsed_s(batch)
        self.now = max(self.now, self.last_end_s)
        self.decider.settle(self.come_out(tokens), {}, self.now)

    def drain(self, limit=20_000):
        for _ in range(limit):
            if not self.alive:
                break
            self.step()
        while self.flights:
            self.settle()
        super().drain(0)


class PipelineExecutor(AheadExecutor):
    """An executor of micro-batches in a pipeline.

    stages: stages of the pipeline, each with a micro-batch.
    is_async: whether a further micro-batch is scheduled while all stages are occupied.
    """

    def __init__(self, scheduler, lengths, *, stages, is_async=False, **kwargs):
        super().__init__(scheduler, lengths, ahead=stages - 1 + is_async, **kwargs)
        self.stages = stages
        self.decider = Rounds(scheduler, stages)

    def check_batch(self, batch):
        limit = self.scheduler.config.max_batch_tokens // self.stages
        assert batch.num_tokens <= limit + self.stages
        ids = [p.request_id for p in batch.prefills] + list(batch.decodes)
        assert len(ids) == len(set(ids)), "one request twice in a batch"
        assert {*ids, *batch.preempted} <= set(self.alive)
        last = [tokens for _, _, tokens in self.flights][-(self.stages - 1) :]
        busy = {i for tokens in last for i, num in tokens.items() if num}
        assert not busy & set(batch.decodes), "the token that it needs may be in flight"
        for prefill in batch.prefills:
            assert 0 < prefill.num_tokens <= self.to_prefill(prefill.request_id)
            self.check_room(prefill.request_id, prefill.num_tokens)
        for request_id in batch.decodes:
            assert self.to_prefill(request_id) == 1, "decodes follow a whole prompt"
            self.check_room(request_id, 1)

    def check_blocks(self):
        running = self.scheduler.running
        running.blocks.check()
        held = {seq.request_id for seq in running}
        assert {i for i in self.alive if running.blocks.held_by(i)} == held & set(self.alive)
