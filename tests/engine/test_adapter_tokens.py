"""Tokens of adapters equal stock vLLM's, under every strategy, while they share one slot."""

import random
from contextlib import nullcontext
from dataclasses import replace
from itertools import cycle

import pytest

from macroserve.core.request import Slo
from macroserve.core.strategies import STRATEGIES
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from support.forced_async import forced_async  # noqa: E402
from support.offline_engine import instance_args, offline_engine, stock_args  # noqa: E402
from support.small_models import build, build_adapter  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402

pytestmark = pytest.mark.integration

NUM_BLOCKS = 40
"""Blocks of the pool, so few that requests are preempted."""
SHARED = list(range(100, 200))
"""The beginning of every prompt."""

Work = tuple[list[int], int, LoRARequest | None]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> EngineSettings:
    folder = tmp_path_factory.mktemp("models")
    model = build(folder / "llama", "llama")
    return EngineSettings(
        model=str(model),
        served_name="llama",
        max_model_len=512,
        strategy="unified",
        dtype="float32",
        # Loose targets: nothing is late, whatever the test machine does.
        slo=Slo(ttft_s=600.0, tpot_s=60.0),
        max_batch_tokens=256,
        adapters={
            name: str(build_adapter(folder / name, model, seed)) for seed, name in enumerate("ab")
        },
        args={
            "skip_tokenizer_init": True,
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


@pytest.mark.parametrize(("name", "is_async"), zip(STRATEGIES, cycle([False, True])))
def test_tokens_of_adapters_that_share_a_slot_equal_stock_vllm(
    name: str,
    is_async: bool,
    settings: EngineSettings,
    workload: list[Work],
    stock_tokens: dict[str, list[int]],
) -> None:
    with (
        forced_async() if is_async else nullcontext(),
        offline_engine(instance_args(replace(settings, strategy=name))) as engine,
    ):
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
