"""Tokens equal stock vLLM's while prompts are loaded from the memory of the host."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from macroserve.core.scheduler.sequence import State
from macroserve.core.strategies import STRATEGIES
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment
from macroserve_lab.bench.kind_models import build

prepare_environment()

from support.host_copies import LOAD_STEPS, with_host_copies  # noqa: E402
from support.offline_engine import (  # noqa: E402
    InstanceEngine,
    instance_args,
    offline_engine,
)
from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: E402
from vllm.v1.request import Request  # noqa: E402

from macroserve.engine.vllm.exact_scheduler import ExactScheduler  # noqa: E402
from macroserve.engine.vllm.options import stock_args  # noqa: E402

pytestmark = pytest.mark.integration

NUM_BLOCKS = 60
"""Blocks of the pool, so few that most beginnings are only in the memory of the host."""
NUM_BLOCKS_OF_WINDOWS = 130
"""Blocks of the pool of a model that draws them for several groups of layers."""
HOST_GIB = 0.05
MIN_HITS = 0.25
"""Least share of the prompt tokens that the caches have."""

Work = list[tuple[list[int], int]]


@pytest.fixture(scope="module")
def settings(small_settings: EngineSettings) -> EngineSettings:
    args = {**small_settings.args, "num_gpu_blocks_override": NUM_BLOCKS + 1}
    return replace(small_settings, prefix_caching="On", args=args)


def hosted(args: AsyncEngineArgs) -> AsyncEngineArgs:
    return with_host_copies(replace(args, kv_offloading_size=HOST_GIB))


def workload() -> Work:
    """Return prompts of many groups in turns, so that a group's beginning has left the pool when
    it comes again."""
    rnd = random.Random(13)
    groups = [
        [rnd.randrange(3, 2000) for _ in range(length)] for length in (96, 250, 500, 320, 640)
    ]
    work: Work = []
    for number in range(30):
        own = [rnd.randrange(3, 2000) for _ in range(rnd.choice((0, 1, 31, 32, 33, 90)))]
        work.append((groups[number % len(groups)] + own, rnd.randrange(1, 50)))
    return work


def tokens_of_stock(settings: EngineSettings, work: Work) -> dict[str, list[int]]:
    with offline_engine(hosted(stock_args(settings))) as engine:
        for index, request in enumerate(work):
            engine.add(str(index), *request)
        return engine.finish()


@pytest.fixture(scope="module")
def stock_tokens(settings: EngineSettings) -> dict[str, list[int]]:
    return tokens_of_stock(settings, workload())


def check_left(engine: InstanceEngine, num_blocks: int = NUM_BLOCKS) -> None:
    """Assert that nothing is left of requests that have ended."""
    for _ in range(2 * LOAD_STEPS):
        engine.step()
    scheduler, ledger = engine.scheduler, engine.policy.running.blocks
    assert not (scheduler.requests or scheduler.kv_holding_waiting or scheduler.waiting)
    assert not (scheduler.deferred_frees or engine.policy.sequences or scheduler._leaving)
    assert not scheduler._host._under_way
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == num_blocks
    assert ledger.free == num_blocks
    ledger.check()


@pytest.mark.parametrize("name", STRATEGIES)
def test_tokens_of_loaded_prompts_equal_stock_vllm(
    name: str, is_async: bool, settings: EngineSettings, stock_tokens: dict[str, list[int]]
) -> None:
    """A strategy that runs equal beginnings side by side loads them when all come once more."""
    with offline_engine(hosted(instance_args(replace(settings, strategy=name)))) as engine:
        loaded: set[str] = set()
        for _ in range(2):
            for index, work in enumerate(workload()):
                engine.add(str(index), *work)
                engine.step()
                loaded |= {*engine.policy.running.loading}
            for _ in range(5000):
                if not engine.unfinished:
                    break
                engine.step()
                loaded |= {*engine.policy.running.loading}
            assert engine.finish() == stock_tokens
            if loaded:
                break
        assert loaded
        check_left(engine)
        status = engine.policy.status(0.0)
        assert status.cached_tokens > MIN_HITS * status.prompt_tokens


def long_responses() -> Work:
    """Return prompts whose responses outgrow the pool, so that requests are preempted or paused."""
    rnd = random.Random(5)
    groups = [[rnd.randrange(3, 2000) for _ in range(200)] for _ in range(6)]
    own = [[rnd.randrange(3, 2000) for _ in range(rnd.randrange(1, 60))] for _ in range(18)]
    return [(groups[n % 6] + own[n], rnd.randrange(100, 300)) for n in range(18)]


@pytest.fixture(scope="module")
def stock_tokens_of_long_responses(settings: EngineSettings) -> dict[str, list[int]]:
    return tokens_of_stock(settings, long_responses())


@pytest.mark.parametrize("name", ["vllm", "econoserve"])
def test_tokens_while_memory_is_short_equal_stock_vllm(
    name: str,
    is_async: bool,
    settings: EngineSettings,
    stock_tokens_of_long_responses: dict[str, list[int]],
) -> None:
    with offline_engine(hosted(instance_args(replace(settings, strategy=name)))) as engine:
        for index, work in enumerate(long_responses()):
            engine.add(str(index), *work)
        assert engine.finish() == stock_tokens_of_long_responses
        check_left(engine)


def test_request_that_leaves_while_it_is_loaded_loses_no_block(
    is_async: bool, settings: EngineSettings, stock_tokens: dict[str, list[int]]
) -> None:
    with offline_engine(hosted(instance_args(settings))) as engine:
        work = workload()
        for index in range(10):
            engine.add(str(index), *work[index])
            engine.finish()
        for index in range(10, 20):
            engine.add(str(index), *work[index])
            for _ in range(100):
                engine.step()
                if engine.policy.running.loading:
                    break
                assert engine.unfinished
            (seq,) = engine.policy.running.loading.values()
            engine.abort(seq.request_id)
            assert seq.state is State.LOADING
            engine.finish()
        check_left(engine)


def test_tokens_of_prompts_that_lose_what_was_loaded_equal_stock_vllm(
    is_async: bool,
    settings: EngineSettings,
    stock_tokens: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rnd, to_come = random.Random(3), [*enumerate(workload())]
    dropped: list[str] = []
    drop = ExactScheduler._drop_loaded

    def drop_loaded(self: ExactScheduler, request: Request) -> None:
        dropped.append(request.request_id)
        drop(self, request)

    monkeypatch.setattr(ExactScheduler, "_drop_loaded", drop_loaded)
    with offline_engine(hosted(instance_args(settings))) as engine:
        while to_come or engine.unfinished:
            if to_come and engine.unfinished < 3:
                index, work = to_come.pop(0)
                engine.add(str(index), *work)
            has_loaded = bool(engine.scheduler.finished_recving_kv_req_ids)
            if rnd.random() < (0.5 if has_loaded else 0.1):
                engine.preempt(0.0)
            engine.step()
        assert engine.finish() == stock_tokens
        assert dropped
        check_left(engine)


def test_tokens_of_a_model_with_sliding_windows_equal_stock_vllm(
    is_async: bool, settings: EngineSettings, tmp_path: Path
) -> None:
    windows = replace(
        settings,
        model=str(build(tmp_path, "gemma3")),
        max_batch_tokens=128,
        args={**settings.args, "num_gpu_blocks_override": NUM_BLOCKS_OF_WINDOWS + 1},
    )
    tokens: list[dict[str, list[int]]] = []
    for args in (stock_args(windows), instance_args(windows)):
        with offline_engine(hosted(args)) as engine:
            loaded: set[str] = set()
            for index, work in enumerate(workload()):
                engine.add(str(index), *work)
                while engine.unfinished > 1:
                    engine.step()
                    if args.scheduler_cls:
                        loaded |= {*engine.policy.running.loading}
            tokens.append(engine.finish())
            if args.scheduler_cls:
                check_left(engine, NUM_BLOCKS_OF_WINDOWS)
                assert loaded
    assert tokens[0] == tokens[1]
