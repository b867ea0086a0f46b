"""The hybrid cache lets more requests run at a time in the same pool."""

import random
from statistics import mean

import pytest

from macroserve.core.scheduler.blocks import CacheKind
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from support.offline_engine import chosen_caches, instance_args, offline_engine  # noqa: E402

pytestmark = pytest.mark.integration

NUM_REQUESTS, PROMPT, RESPONSE = 64, 200, 60


@pytest.fixture(scope="module")
def engine(serve):
    served = serve("llama", num_pages=100)
    with offline_engine(instance_args(served.settings)) as engine:
        yield engine


def num_running(engine, cache: CacheKind) -> float:
    """Return the mean number of running requests while others wait."""
    rnd = random.Random(1)
    for index in range(NUM_REQUESTS):
        prompt = [rnd.randrange(3, 2000) for _ in range(PROMPT)]
        engine.add(f"{cache.value}-{index}", prompt, RESPONSE)
    running = []
    with chosen_caches(lambda index: cache):
        while engine.scheduler.waiting or not running:
            engine.step()
            running.append(len(engine.scheduler.running))
        engine.finish()
    return mean(running)


def test_hybrid_cache_in_the_same_pool_runs_nearly_twice_as_many(engine):
    kv, hidden = (num_running(engine, cache) for cache in CacheKind)
    assert kv >= 8
    assert hidden >= 1.8 * kv, f"{hidden:.1f} requests at a time with hidden states, {kv:.1f} not"
