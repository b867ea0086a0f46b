"""The processes of a pipeline end together, and the instance's health tells of it."""

import asyncio
import os
from dataclasses import replace

import psutil
import pytest
from support.processes import descendants

from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm import ENGINE_NICENESS
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.inputs import TokensPrompt  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402

from macroserve.engine.vllm.engine import VllmEngine  # noqa: E402

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0


def test_pipeline_of_which_a_process_dies_ends_whole(settings: EngineSettings) -> None:
    async def run() -> str:
        engine = VllmEngine(replace(settings, pipeline_parallel=2), Pool.LP)
        try:
            await engine.start()
            core, workers = processes()
            niceness = min(psutil.Process().nice() + ENGINE_NICENESS, 19)
            assert [worker.nice() for worker in workers] == [niceness] * 2
            answer = asyncio.create_task(generate(engine))
            await asyncio.sleep(1.0)
            workers[1].kill()
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(Exception, match="EngineCore"):
                    await answer
            _, alive = psutil.wait_procs([core, *workers], timeout=PATIENCE_S)
            assert not alive
            assert engine.fault is not None
            return engine.fault
        finally:
            await engine.stop()

    assert asyncio.run(run()).startswith("its engine")


def processes() -> tuple[psutil.Process, list[psutil.Process]]:
    """Return the engine's process, and those of its stages in order."""
    (core,) = descendants(os.getpid(), "VLLM::EngineCore")
    first, second = (descendants(core.pid, f"VLLM::Worker_PP{stage}")[0] for stage in range(2))
    return core, [first, second]


async def generate(engine: VllmEngine) -> None:
    params = SamplingParams(max_tokens=1000, ignore_eos=True, detokenize=False)
    async for _ in engine.llm.generate(TokensPrompt(prompt_token_ids=[7] * 8), params, "long"):
        pass
