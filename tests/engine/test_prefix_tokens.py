"""Tokens equal stock vLLM's while prompts share cache blocks, under every strategy."""

import random
from dataclasses import replace

import pytest

from macroserve.core.strategies import STRATEGIES
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from support.offline_engine import instance_args, offline_engine  # noqa: E402

from macroserve.engine.vllm.options import stock_args  # noqa: E402

pytestmark = pytest.mark.integration

NUM_BLOCKS = 60
"""Blocks of the pool, so few that requests are preempted and cached blocks are dropped."""
MIN_HITS = 0.25
"""Least share of the prompt tokens that the cache has."""

Work = list[tuple[list[int], int]]


@pytest.fixture(scope="module")
def settings(small_settings: EngineSettings) -> EngineSettings:
    args = {**small_settings.args, "num_gpu_blocks_override": NUM_BLOCKS + 1}
    return replace(small_settings, args=args)


def workload() -> Work:
    """Return prompts of three groups; those of a group begin with the same tokens, and some are a
    beginning of others."""
    rnd = random.Random(11)
    groups = [[rnd.randrange(3, 2000) for _ in range(length)] for length in (96, 250, 500)]
    work: Work = []
    for _ in range(24):
        group = rnd.choice(groups)
        own = [rnd.randrange(3, 2000) for _ in range(rnd.choice((0, 1, 31, 32, 33, 90)))]
        work.append((group + own, rnd.randrange(1, 50)))
    return [*work, (groups[2], 1), (groups[0][:64], 20), (groups[1][:33], 3)]


@pytest.fixture(scope="module")
def stock_tokens(settings: EngineSettings) -> dict[str, list[int]]:
    with offline_engine(stock_args(replace(settings, prefix_caching="Off"))) as engine:
        for index, work in enumerate(workload()):
            engine.add(str(index), *work)
        return engine.finish()


@pytest.mark.parametrize("name", STRATEGIES)
def test_tokens_of_prompts_with_common_beginnings_equal_stock_vllm(
    name: str, is_async: bool, settings: EngineSettings, stock_tokens: dict[str, list[int]]
) -> None:
    with offline_engine(instance_args(replace(settings, strategy=name))) as engine:
        ledger = engine.policy.running.blocks
        for index, work in enumerate(workload()):
            engine.add(str(index), *work)
            if index % 3 == 0:
                engine.step()
                assert 0 <= ledger.free <= NUM_BLOCKS
        tokens = engine.finish()
        assert tokens == stock_tokens
        assert ledger.free == NUM_BLOCKS
        ledger.check()
        status = engine.policy.status(0.0)
        assert status.cached_tokens > MIN_HITS * status.prompt_tokens
