"""Tokens of adapters equal stock vLLM's, under every strategy, while they share one slot."""

import random
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

from macroserve.core.strategies import STRATEGIES
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from support.offline_engine import instance_args, offline_engine  # noqa: E402
from support.small_models import build_adapter  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402

from macroserve.engine.vllm.options import stock_args  # noqa: E402

pytestmark = pytest.mark.integration

NUM_BLOCKS = 40
"""Blocks of the pool, so few that requests are preempted."""
SHARED = list(range(100, 200))
"""The beginning of every prompt."""

Work = tuple[list[int], int, LoRARequest | None]


@pytest.fixture(scope="module")
def settings(
    small_settings: EngineSettings, tmp_path_factory: pytest.TempPathFactory
) -> EngineSettings:
    folder, model = tmp_path_factory.mktemp("adapters"), Path(small_settings.model)
    return replace(
        small_settings,
        max_model_len=512,
        max_batch_tokens=256,
        adapters={
            name: str(build_adapter(folder / name, model, seed)) for seed, name in enumerate("ab")
        },
        args={
            **small_settings.args,
            "num_gpu_blocks_override": NUM_BLOCKS + 1,
            "max_loras": 1,
        },
    )


@pytest.fixture(scope="module")
def workload(settings: EngineSettings) -> list[Work]:
    """Return prompts in groups of three equal ones: for the model alone, and for each adapter."""
    rnd = random.Random(7)
    works: list[Work] = []
    for _ in range(6):
        prompt = SHARED + [rnd.randrange(3, 2000) for _ in range(rnd.randrange(1, 100))]
        works += [(prompt, rnd.randrange(5, 30), lora) for lora in (None, *loras(settings))]
    return works


def loras(settings: EngineSettings) -> list[LoRARequest]:
    return [LoRARequest(n, i, p) for i, (n, p) in enumerate(settings.adapters.items(), start=1)]


@pytest.fixture(scope="module")
def stock_tokens(settings: EngineSettings, workload: list[Work]) -> dict[str, list[int]]:
    with offline_engine(stock_args(settings)) as engine:
        for index, work in enumerate(workload):
            engine.add(str(index), *work)
        return engine.finish()


def test_tokens_of_the_model_alone_are_those_without_any_adapter(
    settings: EngineSettings, workload: list[Work], stock_tokens: dict[str, list[int]]
) -> None:
    """vLLM's own kernels on a CPU add an adapter that others use."""
    args = {name: value for name, value in settings.args.items() if name != "max_loras"}
    with offline_engine(stock_args(replace(settings, adapters={}, args=args))) as engine:
        for index, work in enumerate(workload):
            if not work[2]:
                engine.add(str(index), *work)
        alone = engine.finish()
    assert {index: stock_tokens[index] for index in alone} == alone
    for index in map(int, alone):
        firsts = {tuple(stock_tokens[str(index + i)][:5]) for i in range(3)}
        assert len(firsts) == 3, "each adapter says something else"


@pytest.mark.parametrize(
    ("name", "is_async"), zip(STRATEGIES, cycle(["sync", "async"])), indirect=["is_async"]
)
def test_tokens_of_adapters_that_share_a_slot_equal_stock_vllm(
    name: str,
    is_async: bool,
    settings: EngineSettings,
    workload: list[Work],
    stock_tokens: dict[str, list[int]],
) -> None:
    with offline_engine(instance_args(replace(settings, strategy=name))) as engine:
        for index, work in enumerate(workload):
            engine.add(str(index), *work)
        assert engine.finish() == stock_tokens
        assert engine.policy.running.blocks.free == NUM_BLOCKS


def test_equal_prompts_of_other_adapters_share_no_blocks(settings: EngineSettings) -> None:
    first, second = loras(settings)
    num_cached: list[int] = []
    with offline_engine(instance_args(settings)) as engine:
        for index, lora in enumerate((None, first, second, first, None)):
            engine.add(str(index), SHARED, 2, lora)
            engine.finish()
            num_cached.append(engine.policy.status(0.0).cached_tokens)
    assert num_cached == [0, 0, 0, 96, 192]
