"""The tests of the instance scheduler share builders and a small executor."""

from dataclasses import replace
from itertools import count

import pytest
from support.linear_latency import NOW, LinearLatency

from macroserve.core.batch import BatchKind, BatchResult
from macroserve.core.latency import LatencyModel
from macroserve.core.request import Request, Slo
from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.batching.baselines import chunked_batch, prefill_first_batch
from macroserve.core.scheduler.batching.ecoserve import ecoserve_batch
from macroserve.core.scheduler.candidates import Candidates
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.scheduler.estimators import LengthPredictor
from macroserve.core.scheduler.iteration import IterationInputs
from macroserve.core.scheduler.running import Running
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.core.scheduler.sequence import Sequence
from macroserve.core.scheduler.waiting import WaitingQueue
from macroserve.core.shapes import DeviceShape, ModelShape
from macroserve.core.status import Phase, Pool
from macroserve.core.strategies import STRATEGIES

SLO = Slo(ttft_s=1.0, tpot_s=0.1)
MODEL = ModelShape(32, 4096, 32, 8, 128, 14336, 32000)
DEVICE = DeviceShape(flops_per_s=100e12, bytes_per_s=1e12)


def build_latency():
    return LatencyModel(MODEL, DEVICE)


def build_config(strategy="unified", *, changes=None, **fields):
    """Return the configuration of a small instance; ``changes`` go into the strategy, the rest into
    it."""
    chosen = STRATEGIES[strategy] if isinstance(strategy, str) else strategy
    defaults = {
        "strategy": replace(chosen, **(changes or {})),
        "pool": Pool.HP,
        "slo": SLO,
        "num_blocks": 256,
        "block_size": 16,
        "max_num_seqs": 16,
        "max_batch_tokens": 512,
        "max_model_len": 4096,
    }
    return InstanceConfig(**{**defaults, **fields})


def build_scheduler(strategy="unified", **fields):
    return InstanceScheduler(build_config(strategy, **fields), build_latency())


def build_request(name, arrival_s=0.0, prompt=100, new=50, slo=SLO, streamed=0):
    return Request(name, arrival_s, prompt, new, slo, streamed)


def build_sequence(name="s", ordinal=0, *, arrival_s=0.0, prompt=100, new=50, slo=SLO, **fields):
    request = build_request(name, arrival_s, prompt, new, slo, fields.pop("streamed", 0))
    cost_s = fields.pop("cost_s", 0.1)
    service_s = fields.pop("service_s", cost_s)
    return Sequence(request, ordinal, fields.pop("predicted", new), cost_s, service_s, cost_s)


class Executor:
    """The executor runs a scheduler's batches on its own clock and checks each against the
    contract.

    Every request that was added must end once: finished, handed back, or finished from outside.

    lengths: tokens of each response.
    shortfalls: for each coming iteration, the tokens by which prefills fall short, and whether the
        decodes are skipped; then everything runs.
    """

    def __init__(self, scheduler, lengths, *, slowdown=1.0, shortfalls=()):
        self.scheduler = scheduler
        self.lengths = lengths
        self.slowdown = slowdown
        self.shortfalls = list(shortfalls)
        self.now = 0.0
        self.requests = {}
        self.computed = {}
        self.emitted = {}
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
            self.emitted[request.request_id] = 0
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

    def to_prefill(self, request_id):
        """Return the tokens missing before the next one comes out; emitted ones are recomputed,
        too."""
        known = self.requests[request_id].num_prompt_tokens + self.emitted[request_id]
        return known - self.computed[request_id]

    def step(self):
        batch = self.scheduler.schedule(self.now)
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
        result = self.run(batch, missing, skip_decodes)
        self.scheduler.update(batch, result, self.now)
        self.check_blocks()
        return batch

    def run(self, batch, missing=0, skip_decodes=False):
        elapsed_s = max(batch.predicted_s, 1e-4) * self.slowdown
        self.now += elapsed_s
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
        finished = []
        for request_id in emitted:
            self.emitted[request_id] += 1
            self.first_token_s.setdefault(request_id, self.now)
            self.last_token_s[request_id] = self.now
            if self.emitted[request_id] == self.lengths[request_id]:
                finished.append(request_id)
                self.end(request_id, "finished")
        if skip_decodes or len(self.batches) % 3 == 0:  # one by one
            return BatchResult(elapsed_s, prefilled, emitted, tuple(finished))
        for request_id in batch.decodes:
            del emitted[request_id]
        return BatchResult(elapsed_s, prefilled, emitted, tuple(finished), decoded=1)

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
            assert not ids and not self.alive, f"idle beside {self.alive}"
        else:
            assert ids and batch.reason and batch.predicted_s > 0
        assert (batch.kind is BatchKind.MIXED) == bool(batch.prefills and batch.decodes)
        if config.strategy.batch in (prefill_first_batch, ecoserve_batch):
            assert batch.kind is not BatchKind.MIXED
        if config.strategy.batch is chunked_batch and batch.prefills:
            assert batch.num_tokens <= config.chunk_tokens
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
        held = {seq.request_id for seq in running}
        assert held == {i for i in self.alive if running.blocks.held_by(i)}


@pytest.fixture(scope="session")
def make_latency():
    return build_latency


@pytest.fixture(scope="session")
def make_config():
    return build_config


@pytest.fixture(scope="session")
def make_scheduler():
    return build_scheduler


@pytest.fixture(scope="session")
def make_request():
    return build_request


@pytest.fixture(scope="session")
def make_sequence():
    return build_sequence


@pytest.fixture(scope="session")
def make_executor():
    return Executor


class Step:
    """A step is one iteration with inputs chosen by a test."""

    def __init__(self, inputs: IterationInputs) -> None:
        self.inputs = inputs
        self.candidates = Candidates(inputs)
        self.admission = Admission(inputs, self.candidates)

    def pick(self, num_tokens, **kwargs):
        return self.admission.pick(num_tokens, **kwargs)

    def plan(self):
        return self.inputs.config.strategy.batch(self.inputs, self.admission)


@pytest.fixture(scope="session")
def make_step(make_config, make_sequence):
    """Return a function that builds the inputs of one iteration at ``NOW``.

    decoding: saved TPOT of each decode, seconds; ``fresh`` more have one token out.
    waiting: tokens of each prompt; the oldest arrived ``waited_s`` ago.
    begun: tokens left of prompts under way, which arrived ``begun_s`` ago.
    prefilled_s: time since the last prefill, seconds.
    inflow: arriving tokens per second.
    """

    def build(
        strategy,
        decoding=(),
        waiting=(),
        begun=(),
        *,
        fresh=0,
        waited_s=0.1,
        begun_s=0.1,
        phase=Phase.DECODE,
        phase_s=0.0,
        prefilled_s=0.1,
        pace_s=0.0,
        inflow=0.0,
        batch_s=0.02,
        num_blocks=4096,
        lengths=(),
        new=50,
        latency=None,
        preempted=(),
        **fields,
    ):
        config = make_config(strategy, num_blocks=num_blocks, **fields)
        running = Running(
            num_blocks,
            config.block_size,
            pause_when_full=config.strategy.exact_kv,
            hidden_states_per_block=config.hidden_states_per_block,
        )
        queue = WaitingQueue(config.strategy.ordering)
        predictor = LengthPredictor()
        for length in lengths:
            predictor.observe(make_sequence().request, length)
        ordinals = count()
        for index, left in enumerate(begun):
            seq = make_sequence(
                f"b{index}", next(ordinals), arrival_s=NOW - begun_s, prompt=left + 100
            )
            running.admit(seq, 2)
            seq.num_computed = 100
        for index, saved_s in enumerate((*decoding, *[0.0] * fresh)):
            seq = make_sequence(f"d{index}", next(ordinals), prompt=10, new=1000)
            running.admit(seq, 2)
            seq.emit(1, NOW - 1.0)
            if index < len(decoding):
                seq.emit(1, NOW - 1.0)
                seq.tpot_budget_until_s = NOW + saved_s
            running.start_decoding(seq)
        for index, prompt in enumerate(waiting):
            arrival_s = NOW - (0.0 if index else waited_s)
            queue.add(
                make_sequence(
                    f"w{index}", next(ordinals), arrival_s=arrival_s, prompt=prompt, new=new
                )
            )
        return Step(
            IterationInputs(
                now=NOW,
                config=config,
                latency=(latency := latency or LinearLatency(batch_s)),
                lengths=predictor,
                waiting=queue,
                running=running,
                phase=phase,
                phase_since_s=NOW - phase_s,
                prefilled_s=NOW - prefilled_s,
                pace_s=pace_s,
                decode_s=running.decoding.step_s(latency),
                inflow_tokens_per_s=inflow,
                preempted=preempted,
            )
        )

    return build
