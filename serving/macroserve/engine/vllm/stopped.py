"""An instance ends a request whose text has met a stop string at an ingress.

An instance has no text: without a message from the ingress such a request looks like one whose
client has left, which vLLM's metrics do not count. Here it ends like one that met the string in
vLLM itself.
"""

from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import OutputProcessor, RequestState
from vllm.v1.metrics.stats import IterationStats

from macroserve.engine.tokens import Stopped

# ``ServingTokens`` puts it before the name in the request's body.
_PREFIX = "generate-tokens-"


async def end_stopped(llm: AsyncLLM, stopped: Stopped) -> None:
    """End a request by the steps of ``OutputProcessor.process_outputs`` at a stop string.

    A request that has ended is ignored, so that each is counted once. Nothing is awaited before it
    is counted.
    """
    processor: OutputProcessor = llm.output_processor
    ids = list(processor.external_req_ids.get(_PREFIX + stopped.request_id, ()))
    for request_id in ids:
        state: RequestState = processor.request_states[request_id]
        assert state.stats is not None, "statistics are always on"
        # Tokens generated since then are not part of the answer.
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
