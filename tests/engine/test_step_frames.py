"""The tokens of a step travel in one frame, however many streams a connection has."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.engine.token_frames import FrameParser, Item
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.sampling_params import RequestOutputKind, SamplingParams  # noqa: E402
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest  # noqa: E402
from vllm.v1.engine.async_llm import AsyncLLM  # noqa: E402
from vllm.v1.engine.output_processor import OutputProcessor  # noqa: E402

from macroserve.engine.vllm.choices import _ReaderQueue, _ReaderState  # noqa: E402
from macroserve.serving.instance.token_frames import Connection, Stream  # noqa: E402
from macroserve.serving.instance.token_server import build_engine  # noqa: E402

NUM_STEPS = 3
CHUNK_SIZE = "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE"


def add(processor: OutputProcessor, connection: Connection, number: int) -> None:
    """Let a request of the engine put its tokens into a stream of the connection."""
    name = str(number)
    params = SamplingParams(
        max_tokens=NUM_STEPS, detokenize=False, output_kind=RequestOutputKind.DELTA
    )
    request = EngineCoreRequest(
        name, [1], None, params, None, 0.0, None, None, None, external_req_id=name
    )
    connection.streams[number] = stream = Stream(connection, number)
    queue = _ReaderQueue(name, stream, None)
    processor.add_request(request, None, None, 0, queue)
    _ReaderState.take_over(processor.request_states[name], queue)


def llm_of(processor: OutputProcessor, steps: "asyncio.Queue[EngineCoreOutputs]") -> Any:
    """Return vLLM's client of an engine that has these steps."""
    return SimpleNamespace(
        engine_core=SimpleNamespace(get_output_async=steps.get),
        output_processor=processor,
        renderer=SimpleNamespace(mm_processor_cache=None, stat_mm_cache=lambda: None),
        log_stats=False,
        logger_manager=None,
        output_handler=None,
    )


@pytest.mark.parametrize("num_streams", [1, 129, 1000])
async def test_tokens_of_a_step_come_in_one_frame(
    num_streams: int, settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHUNK_SIZE, "1")  # so that it is as before in the end
    monkeypatch.delenv(CHUNK_SIZE)
    build_engine(settings, Pool.LP)
    connection, steps = Connection(), asyncio.Queue[EngineCoreOutputs]()
    processor = OutputProcessor(None, log_stats=False)
    for number in range(num_streams):
        add(processor, connection, number)
    llm = llm_of(processor, steps)
    AsyncLLM._run_output_handler(llm)
    parser, frames = FrameParser(), connection.frames()

    async def frame() -> list[list[Item]]:
        return list(parser.feed(await anext(frames)))

    async with asyncio.timeout(60):
        assert await frame() == [[]]
        for step in range(NUM_STEPS):
            outputs = [EngineCoreOutput(str(n), [100 * step + n]) for n in range(num_streams)]
            steps.put_nowait(EngineCoreOutputs(outputs=outputs))
            assert await frame() == [[Item(n, [100 * step + n]) for n in range(num_streams)]]
    llm.output_handler.cancel()
