"""The block pool of engines without a model finds, and drops, what vLLM's own does."""

import random

import pytest

from macroserve.core.block_pool import BlockPool, HashChain
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

import torch  # noqa: E402
from vllm.config import VllmConfig  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_manager import KVCacheManager  # noqa: E402
from vllm.v1.core.kv_cache_utils import (  # noqa: E402
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.core.single_type_kv_cache_manager import (  # noqa: E402
    register_all_kvcache_specs,
)
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.request import Request  # noqa: E402

from macroserve.engine.vllm.cache_record import VllmCacheRecord  # noqa: E402

pytestmark = pytest.mark.integration

SIZE, NUM_BLOCKS, NUM_MOVES = 16, 40, 600


@pytest.mark.parametrize("seed", range(5))
def test_block_pool_under_random_requests_equals_vllms(seed: int) -> None:
    init_none_hash(sha256)
    register_all_kvcache_specs(VllmConfig())
    spec = FullAttentionSpec(block_size=SIZE, num_kv_heads=1, head_size=8, dtype=torch.float32)
    manager = KVCacheManager(
        # One block is vLLM's null block.
        KVCacheConfig(NUM_BLOCKS + 1, [], [KVCacheGroupSpec(["layer"], spec)]),
        max_model_len=1024,
        scheduler_block_size=SIZE,
        hash_block_size=SIZE,
        enable_caching=True,
    )
    hasher = get_request_block_hasher(SIZE, sha256)
    rnd, pool, running = random.Random(seed), BlockPool(NUM_BLOCKS, SIZE), dict[str, Request]()
    requests: dict[str, Request] = {}
    record = VllmCacheRecord(manager, requests)
    groups = [[rnd.randrange(50) for _ in range(length)] for length in (40, 100, 200)]
    num_found = 0
    for move in range(NUM_MOVES):
        record.refresh()
        assert (pool.free, pool.allocated) == (record.free, record.allocated)
        assert all(pool.shared_by(name) == record.shared_by(name) for name in running)
        if running and rnd.random() < 0.5:
            name = rnd.choice(list(running))
            manager.free(running.pop(name))
            del requests[name]
            pool.remove(name)
            continue
        name = str(move)
        prompt = rnd.choice(groups)[: rnd.randrange(10, 200)] + [rnd.randrange(50)] * 9
        request = Request(name, prompt, SamplingParams(max_tokens=9), None, block_hasher=hasher)
        requests[name] = request
        pool.add(name, len(prompt), HashChain(SIZE).extend(prompt))
        hit = pool.find(name)
        assert hit == record.find(name)
        for guess in (0, hit.num_tokens, hit.num_tokens + SIZE, max(0, hit.num_tokens - SIZE)):
            if guess < len(prompt):
                assert pool.num_cached(name, guess) == record.num_cached(name, guess)
        assert pool.num_cached(name, hit.num_tokens) == hit.num_tokens
        found, num_tokens, _ = manager.get_computed_blocks(request)
        allocated = manager.allocate_slots(request, len(prompt) - num_tokens, num_tokens, found)
        if allocated is None:
            assert -(-len(prompt) // SIZE) - hit.num_held_blocks > pool.free
            del requests[name]
            pool.remove(name)
            continue
        num_found += num_tokens
        request.num_computed_tokens = len(prompt)
        pool.compute(name, len(prompt))
        running[name] = request
    assert num_found > 1000
