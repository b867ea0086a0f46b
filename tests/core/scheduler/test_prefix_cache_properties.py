"""The scheduler never grants blocks that an engine with a prefix cache does not have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.allocating_engine import AllocatingEngine

from macroserve.core.block_pool import BlockPool, HashChain
from macroserve.core.request import Slo
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


@pytest.mark.parametrize("name", STRATEGIES)
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
    engine = AllocatingEngine(scheduler, pool, ahead)
    for step in range(MAX_STEPS):
        for index, (at, group, num_shared, num_own, num_tokens) in enumerate(arriving):
            if at == step:
                shared = [group] * (num_shared * BLOCK_SIZE)
                own = [100 + index] * num_own
                prompt = shared + own
                hashes = HashChain(BLOCK_SIZE).extend(prompt)
                engine.add(str(index), len(prompt), num_tokens, SLO, hashes)
        engine.leave(str(leaving.get(step)))
        goes_on = engine.step()
        assert 0 <= scheduler.running.blocks.free <= num_blocks
        if step > 30 and not goes_on:
            break
    assert not engine.left, "requests never end"
    scheduler.running.blocks.check()
    assert (pool.free, pool.allocated) == (num_blocks, 0)
    assert scheduler.status(engine.now).cached_tokens == engine.num_cached
