"""Tokens of a pipeline equal stock vLLM's, and its stages are filled evenly."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from support.offline_engine import (  # noqa: E402
    InstanceEngine,
    instance_args,
    offline_engine,
)

from macroserve.engine.vllm.options import stock_args  # noqa: E402

pytestmark = pytest.mark.integration

NUM_BLOCKS = 36
"""Blocks of the pool, so few that requests are preempted and cached blocks are dropped."""


@pytest.fixture(scope="module")
def settings(small_settings: EngineSettings) -> EngineSettings:
    return replace(
        small_settings, args={**small_settings.args, "num_gpu_blocks_override": NUM_BLOCKS + 1}
    )


def workload() -> list[tuple[list[int], int]]:
    """Return prompts of which many begin with the same tokens, and one is longer than a batch."""
    rnd = random.Random(7)
    common = [rnd.randrange(3, 2000) for _ in range(150)]
    work = [
        (common[: rnd.randrange(150)] + own(rnd, 1, 120), rnd.randrange(1, 20)) for _ in range(9)
    ]
    return [*work, (own(rnd, 700, 701), 15), (common, 1), (common[:64], 12)]


def own(rnd: random.Random, least: int, end: int) -> list[int]:
    return [rnd.randrange(3, 2000) for _ in range(rnd.randrange(least, end))]


@pytest.fixture(scope="module")
def stock_tokens(settings: EngineSettings) -> dict[str, list[int]]:
    """Return the tokens of stock vLLM without a pipeline."""
    with offline_engine(stock_args(replace(settings, prefix_caching="Off"))) as engine:
        for index, work in enumerate(workload()):
            engine.add(str(index), *work)
        return engine.finish()


@pytest.fixture(scope="module")
def pipeline(
    settings: EngineSettings, stock_tokens: dict[str, list[int]]
) -> Iterator[InstanceEngine]:
    """Return an engine of two stages for all tests. Stock vLLM has ended: there is one engine to a
    process."""
    assert stock_tokens
    args = instance_args(replace(settings, pipeline_parallel=2, prefix_caching="On"))
    with offline_engine(args) as engine:
        yield engine


@pytest.mark.parametrize("shares_prefixes", [False, True])
@pytest.mark.parametrize("name", ["unified", "vllm", "ecoserve"])
def test_tokens_of_a_pipeline_equal_stock_vllm(
    name: str,
    shares_prefixes: bool,
    pipeline: InstanceEngine,
    stock_tokens: dict[str, list[int]],
) -> None:
    pipeline.decide_by(name, shares_prefixes=shares_prefixes)
    for index, work in enumerate(workload()):
        pipeline.add(str(index), *work)
        if index % 3 == 0:
            pipeline.step()
    assert pipeline.finish() == stock_tokens
    assert pipeline.policy.running.blocks.free == NUM_BLOCKS
    assert pipeline.policy.sequences == {}
    assert (pipeline.policy.status(0.0).cached_tokens > 0) == shares_prefixes
