"""Tokens equal stock vLLM's under every strategy while steps are scheduled ahead."""

import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import pytest

from macroserve.core.request import Slo
from macroserve.core.strategies import STRATEGIES
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from support.forced_async import forced_async  # noqa: E402
from support.offline_engine import instance_args, offline_engine, stock_args  # noqa: E402
from support.small_models import build  # noqa: E402

pytestmark = pytest.mark.integration

NUM_PAGES = 60
"""So few that requests of the workload are preempted."""
MIN_AHEAD = 0.9
"""Least share of the steps that begin while another one is in flight."""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> EngineSettings:
    return EngineSettings(
        model=str(build(tmp_path_factory.mktemp("llama"), "llama")),
        served_name="llama",
        max_model_len=1024,
        strategy="unified",
        dtype="float32",
        # Loose targets: nothing is late, whatever the test machine does.
        slo=Slo(ttft_s=600.0, tpot_s=60.0),
        max_batch_tokens=512,
        hybrid_cache="Off",
        args={"skip_tokenizer_init": True, "num_gpu_blocks_override": NUM_PAGES + 1},
    )


def workload() -> list[tuple[list[int], int]]:
    rnd = random.Random(7)
    lengths = [(rnd.randrange(1, 250), rnd.randrange(1, 60)) for _ in range(20)]
    lengths += [(31, 2), (32, 33), (33, 40), (64, 1), (700, 70), (1, 60)]
    return [([rnd.randrange(3, 2000) for _ in range(n)], m) for n, m in lengths]


@pytest.fixture(scope="module")
def stock_tokens(settings: EngineSettings) -> dict[str, list[int]]:
    with offline_engine(stock_args(settings)) as engine:
        for index, work in enumerate(workload()):
            engine.add(str(index), *work)
        return engine.finish()


@pytest.fixture(params=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> Iterator[bool]:
    ahead = request.param == "async"
    with forced_async() if ahead else nullcontext():
        yield ahead


@pytest.mark.parametrize("name", STRATEGIES)
def test_tokens_scheduled_ahead_equal_stock_vllm(
    name: str, is_async: bool, settings: EngineSettings, stock_tokens: dict[str, list[int]]
) -> None:
    with offline_engine(instance_args(replace(settings, strategy=name))) as engine:
        for index, work in enumerate(workload()):
            engine.add(str(index), *work)
        assert engine.finish() == stock_tokens
        assert engine.policy.running.blocks.free == NUM_PAGES
        in_flight = engine.policy.in_flight
        share = in_flight.num_ahead / in_flight.num_begun
        assert share >= MIN_AHEAD if is_async else share == 0
