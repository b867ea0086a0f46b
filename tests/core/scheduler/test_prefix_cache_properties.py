"""The scheduler never grants blocks that an engine with a prefix cache does not have."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from macroserve.core.batch import BatchKind, BatchResult
from macroserve.core.block_pool import BlockPool, HashChain
from macroserve.core.request import Request, Slo
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.core.status import Pool
from macroserve.core.strategies import STRATEGIES

BLOCK_SIZE = 8
SLO = Slo(5.0, 0.1)
MAX_STEPS = 3000

requests = st.lists(
    st.tuples(
        st.integers(0, 30),  # step of the arrival
        st.integers(0, 2),  # group of prompts with a common beginning
        st.integers(0, 12),  # blocks of it
        st.integers(1, 20),  # tokens of its own
        st.integers(1, 40),  # tokens of the response
    ),
    min_size=1,
    max_size=15,
)
leavings = st.dictionaries(st.integers(0, 30), st.integers(0, 14), max_size=3)


class Engine:
    """An engine allocates what a batch needs as it takes it on, while others are in flight."""

    def __init__(self, scheduler, pool, ahead):
        self.scheduler, self.pool, self.ahead = scheduler, pool, ahead
        self.now = 0.0
        self.flights = deque()
        self.prompt, self.left, self.computed, self.emitted = {}, {}, {}, {}
        self.num_cached = 0

    def add(self, name, prompt, num_tokens):
        self.pool.add(name, len(prompt), HashChain(BLOCK_SIZE).extend(prompt))
        self.prompt[name], self.left[name] = len(prompt), num_tokens
        self.computed[name] = self.emitted[name] = 0
        request = Request(name, self.now, len(prompt), num_tokens, SLO)
        assert self.scheduler.add_request(request, self.now) is None

    def leave(self, name):
        if name in self.left:
            self.forget(name)
            self.scheduler.finish(name)

    def forget(self, name):
        self.pool.remove(name)
        del self.left[name]

    def step(self):
        batch = self.scheduler.schedule(self.now)
        for item in batch.handed_back:
            self.forget(item.request_id)
        flying = {name for _, _, tokens in self.flights for name in tokens}
        for name in batch.preempted:
            self.pool.release(name)
            self.computed[name] = 0
        prefilled, cached, emitted = {}, {}, {}
        for prefill in batch.prefills:
            name = prefill.request_id
            prefilled[name] = 0
            if name in flying and not self.computed[name]:
                continue  # its tokens are out before it begins again
            if not self.computed[name]:
                cached[name] = self.computed[name] = self.pool.find(name).num_tokens
                self.num_cached += cached[name]
            known = self.prompt[name] + self.emitted[name]
            prefilled[name] = min(prefill.num_tokens, known - self.computed[name])
            self.compute(name, prefilled[name])
            if self.computed[name] == known:
                emitted[name] = 1
        for name in batch.decodes:
            self.compute(name, 1)
            emitted[name] = 1
        for name in emitted:
            self.emitted[name] += 1
        taken = BatchResult(batch.predicted_s, prefilled, emitted, decoded=1, cached=cached)
        self.scheduler.promise(batch, taken)
        self.flights.append((batch, self.now, emitted))
        while len(self.flights) > (self.ahead if batch.kind is not BatchKind.IDLE else 0):
            self.settle()
        return batch.kind is not BatchKind.IDLE or bool(self.left)

    def compute(self, name, num_tokens):
        self.computed[name] += num_tokens
        held = self.scheduler.running.blocks.held_by(name)
        assert self.computed[name] <= held * BLOCK_SIZE, f"{name} outruns its reservation"
        self.pool.compute(name, self.computed[name])

    def settle(self):
        batch, _, emitted = self.flights.popleft()
        self.now += batch.predicted_s or 0.01
        finished = []
        for name in emitted:
            if name in self.left:
                self.left[name] -= 1
                if not self.left[name]:
                    finished.append(name)
        for name in finished:
            self.forget(name)
        self.scheduler.settle(finished, {}, self.now)


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=100, deadline=None)
@given(requests, leavings, st.integers(22, 60), st.integers(0, 2), st.integers(1, 8))
def test_requests_that_share_prompts_end_within_the_blocks_of_their_engine(
    name, make_latency, arriving, leaving, num_blocks, ahead, seats
):
    pool = BlockPool(num_blocks, BLOCK_SIZE)
    config = InstanceConfig(
        strategy=STRATEGIES[name],
        pool=Pool.LP,
        slo=SLO,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=seats,
        max_batch_tokens=64,
        max_model_len=1000,
    )
    scheduler = InstanceScheduler(config, make_latency(), pool)
    engine = Engine(scheduler, pool, ahead)
    for step in range(MAX_STEPS):
        for index, (at, group, num_shared, num_own, num_tokens) in enumerate(arriving):
            if at == step:
                shared = [group] * (num_shared * BLOCK_SIZE)
                own = [100 + index] * num_own
                engine.add(str(index), shared + own, num_tokens)
        engine.leave(str(leaving.get(step)))
        goes_on = engine.step()
        assert 0 <= scheduler.running.blocks.free <= num_blocks
        if step > 30 and not goes_on:
            break
    assert not engine.left, "requests never end"
    scheduler.running.blocks.check()
    assert (pool.free, pool.allocated) == (num_blocks, 0)
    assert scheduler.status(engine.now).cached_tokens == engine.num_cached
