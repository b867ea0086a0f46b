"""The processes of a pipeline end together, and the instance's health tells of it."""

import asyncio
import os
from dataclasses import replace

import psutil
import pytest
from support.iterated import QueueReader
from support.processes import descendants
from support.token_requests import token_request

from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm import ENGINE_NICENESS
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from macroserve.engine.vllm.engine import VllmEngine  # noqa: E402

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0


def test_pipeline_of_which_a_process_dies_ends_whole(settings: EngineSettings) -> None:
    async def run() -> str | None:
        engine = VllmEngine(replace(settings, pipeline_parallel=2), Pool.LP)
        try:
            await engine.start()
            workers = [descendants(os.getpid(), f"VLLM::Worker_PP{stage}")[0] for stage in range(2)]
            niceness = min(psutil.Process().nice() + ENGINE_NICENESS, 19)
            assert [worker.nice() for worker in workers] == [niceness] * 2
            await engine.submit(token_request(max_new_tokens=1000), reader := QueueReader())
            await reader.next()
            workers[1].kill()
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(RuntimeError, match="the engine has failed"):
                    await reader.rest()
        finally:
            fault = engine.fault
            await engine.stop()
        _, alive = psutil.wait_procs(workers, timeout=PATIENCE_S)
        assert not alive
        return fault

    assert asyncio.run(run()) == "its engine has failed"
