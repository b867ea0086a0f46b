"""``macroserve bench engine``: steps of vLLM's scheduler and ours, without a model."""

import pytest

from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: E402

from macroserve.engine.vllm.scheduler import MacroserveScheduler  # noqa: E402
from macroserve_lab.bench import engine_steps  # noqa: E402
from macroserve_lab.bench.quickstart import quickstart_settings  # noqa: E402
from macroserve_lab.dry_run import DryRun  # noqa: E402

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def settings() -> EngineSettings:
    return quickstart_settings()


def test_figures_are_reported_by_size(settings: EngineSettings) -> None:
    figures = engine_steps.measure(settings, ((8, 4),))
    assert set(figures) == {
        "engine.async.ahead",
        "engine.stock_step_ms.8_4",
        "engine.step_ms.8_4",
        "engine.ahead.8_4",
        "engine.step_cpu_ratio.8_4",
    }
    assert 0 < figures["engine.stock_step_ms.8_4"] < 1000
    assert figures["engine.async.ahead"] == figures["engine.ahead.8_4"] > 0.95


def test_steps_with_drafted_tokens_are_hardly_more_than_stock_ones(
    settings: EngineSettings,
) -> None:
    figures = engine_steps.measure_speculation(settings)
    assert 0.9 < figures["engine.spec.steps_ratio"] <= 1.05


def test_prompt_of_one_token_begins_beside_decodes_with_drafts(settings: EngineSettings) -> None:
    """vLLM schedules it with a decode's number of tokens or not at all."""
    enough = engine_steps.speculating(engine_steps.enlarged(settings, 16))
    run = engine_steps.filled(DryRun(enough, MacroserveScheduler), 8, 0)
    run.add(1, 10)
    for _ in range(3):
        run.step()
    assert (run.num_decoding, run.num_waiting) == (9, 0)


@pytest.mark.parametrize("scheduler", [AsyncScheduler, MacroserveScheduler])
def test_steps_decode_all_seats_while_others_wait(
    settings: EngineSettings, scheduler: type[AsyncScheduler]
) -> None:
    run = engine_steps.filled(DryRun(engine_steps.enlarged(settings, 8), scheduler), 8, 4)
    for _ in range(10):
        run.step()
        assert (run.num_decoding, run.num_waiting) == (8, 4)


def test_pipeline_needs_no_more_steps_than_vllm(settings: EngineSettings) -> None:
    assert engine_steps.measure_pipeline(settings, 40).popitem()[1] <= 1.05
