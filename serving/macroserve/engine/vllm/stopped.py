"""The end of a request whose text has met a stop string at an ingress.

Instances do not see text. Without a message from the ingress such a request would look aborted, and
vLLM's metrics would not count it.
"""

from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import OutputProcessor, RequestState
from vllm.v1.metrics.stats import IterationStats

from macroserve.engine.tokens import Stopped

# ``ServingTokens`` adds this prefix to the id in the request's body.
_PREFIX = "generate-tokens-"


async def end_stopped(llm: AsyncLLM, stopped: Stopped) -> None:
    """End a request as ``OutputProcessor.process_outputs`` does at a stop string.

    Each is counted once: an ended request is ignored, and nothing is awaited before counting.
    """
    processor: OutputProcessor = llm.output_processor
    ids = list(processor.external_req_ids.get(_PREFIX + stopped.request_id, ()))
    for request_id in ids:
        state: RequestState = processor.request_states[request_id]
        assert state.stats is not None, "statistics are always on"
        # Later tokens are not part of the answer.
        num_tokens = min(state.stats.num_generation_tokens, stopped.num_tokens)
        state.stats.num_generation_tokens = num_tokens
        output = state.make_request_output([], None, FinishReason.STOP, None)
        if state.queue is not None and output is not None:
            state.queue.put(output)
        processor._finish_request(state)
        iteration = IterationStats()
        processor._update_stats_from_finished(state, FinishReason.STOP, iteration)
        if processor.tracing_enabled:
            ended = EngineCoreOutput(request_id, [], finish_reason=FinishReason.STOP)
            processor.do_tracing(ended, state, iteration)
        if llm.logger_manager is not None:
            llm.logger_manager.record(scheduler_stats=None, iteration_stats=iteration)
    await llm.engine_core.abort_requests_async(ids)
