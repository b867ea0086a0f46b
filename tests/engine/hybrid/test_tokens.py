"""Greedy tokens equal stock vLLM's, whatever the caches of a request, and however often they
change."""

import random
from collections import defaultdict

import pytest

from macroserve.core.scheduler.blocks import CacheKind
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from support.offline_engine import chosen_caches, instance_args, offline_engine  # noqa: E402

from macroserve.engine.vllm.hybrid import scratch_pages  # noqa: E402

pytestmark = pytest.mark.integration

CASES = {
    "llama": ("llama", {}),
    "opt": ("opt", {}),
    "qwen": ("qwen", {}),
    "llama-gqa": ("llama-gqa", {}),
    "in-chunks": ("llama", {"strategy": "aptserve-s", "max_batch_tokens": 96}),
    "on-two-ranks": ("llama", {"tensor_parallel": 2}),
    "opt-on-two-ranks": ("opt", {"tensor_parallel": 2}),
}


@pytest.fixture(scope="module", params=CASES)
def served(request, serve):
    name, fields = CASES[request.param]
    return serve(name, **fields)


@pytest.fixture(scope="module")
def engine(served):
    """Return an engine whose scratch holds only the longest request, so that most batches run in
    turn.

    Keys and values are recomputed there.
    """
    args = instance_args(served.settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scratch_pages, "MIN_TOKENS", 1)
        with offline_engine(args) as engine:
            yield engine


def run(engine, served, choose, on_step=lambda: None):
    with chosen_caches(choose):
        for index, work in enumerate(served.works):
            engine.add(str(index), *work)
        while engine.unfinished:
            engine.step()
            on_step()
    tokens = engine.finish()
    return [tokens[str(index)] for index in range(len(served.works))]


@pytest.mark.parametrize(
    ("choose", "kinds"),
    [
        pytest.param(lambda index: CacheKind.KV, {CacheKind.KV}, id="all-kv"),
        pytest.param(lambda index: CacheKind.HIDDEN, {CacheKind.HIDDEN}, id="all-hidden"),
        pytest.param(lambda index: list(CacheKind)[index % 2], set(CacheKind), id="mixed"),
    ],
)
def test_tokens_with_the_hybrid_cache_equal_stock_vllm(engine, served, choose, kinds):
    seen = set()
    tokens = run(engine, served, choose, lambda: seen.update(engine.caches().values()))
    assert tokens == served.tokens
    assert seen == kinds


def test_tokens_when_caches_change_equal_stock_vllm(engine, served):
    """A preempted request may come back with the other cache.

    How often depends on how long steps take, so the requests run until it has happened.
    """
    rnd = random.Random(3)
    both = 0
    for _ in range(5):
        had = defaultdict(set)

        def preempt(had=had):
            for request_id, cache in engine.caches().items():
                had[request_id].add(cache)
            if rnd.random() < 0.3 and engine.unfinished > 2:
                engine.preempt(rnd.random())

        tokens = run(engine, served, lambda index: rnd.choice(list(CacheKind)), preempt)
        assert tokens == served.tokens
        both += sum(len(caches) == 2 for caches in had.values())
        if both >= 3:
            return
    raise AssertionError(f"only {both} requests have had both caches")
