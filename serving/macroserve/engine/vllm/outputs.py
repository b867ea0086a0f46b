"""The engine's running requests: their outputs as choices, and vLLM's statistics of them."""

from vllm.config import VllmConfig
from vllm.tracing import init_tracer
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor, RequestState
from vllm.v1.metrics.loggers import StatLoggerManager, load_stat_logger_plugin_factories
from vllm.v1.metrics.stats import IterationStats

from macroserve.api.logs import get_logger
from macroserve.engine.tokens import Choice, TokenReader
from macroserve.engine.vllm.logprobs import packed

log = get_logger(__name__)


class RunningRequests(OutputProcessor):
    """An output processor without text, which passes each output to the request's reader."""

    def __init__(self, config: VllmConfig) -> None:
        endpoint = config.observability_config.otlp_traces_endpoint
        if endpoint is not None:
            init_tracer("vllm.llm_engine", endpoint)
        super().__init__(None, log_stats=True, tracing_enabled=endpoint is not None)
        self._readers: dict[str, TokenReader] = {}
        loggers = load_stat_logger_plugin_factories()
        self._loggers = StatLoggerManager(config, engine_idxs=[0], custom_stat_loggers=loggers)
        self._loggers.log_engine_initialized()

    def __len__(self) -> int:
        return len(self.request_states)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self.request_states

    def add(self, request: EngineCoreRequest, reader: TokenReader) -> None:
        self._readers[request.request_id] = reader
        self.request_states[request.request_id] = RequestState.from_new_request(
            tokenizer=None,
            request=request,
            prompt=None,
            parent_req=None,
            request_index=0,
            queue=None,
            log_stats=True,
            stream_interval=1,
        )

    def take(self, outputs: EngineCoreOutputs) -> None:
        """Pass on the outputs of a step."""
        iteration = IterationStats() if outputs.outputs else None
        for output in outputs.outputs:
            # An aborted request may still get tokens.
            if state := self.request_states.get(output.request_id):
                assert iteration is not None
                self._take(output, state, outputs.timestamp, iteration)
        self.update_scheduler_stats(outputs.scheduler_stats)
        self._loggers.record(outputs.scheduler_stats, iteration)

    def end(self, request_id: str, num_tokens: int | None) -> bool:
        """End a request whose client has left, or whose text has met a stop string after
        ``num_tokens`` tokens, which vLLM's statistics count; return whether it still ran."""
        if not (state := self.request_states.get(request_id)):
            return False
        if num_tokens is None:
            del self.request_states[request_id], self._readers[request_id]
            self.lora_states.request_finished(request_id, state.lora_name)
            return True
        assert state.stats is not None, "statistics are always on"
        state.stats.num_generation_tokens = min(state.stats.num_generation_tokens, num_tokens)
        iteration, reason = IterationStats(), FinishReason.STOP
        self._end(EngineCoreOutput(request_id, [], finish_reason=reason), state, reason, iteration)
        self._loggers.record(None, iteration)
        return True

    def fail(self, message: str) -> None:
        """End all requests as failed."""
        self.request_states.clear()
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.fail(message)

    def _take(
        self,
        output: EngineCoreOutput,
        state: RequestState,
        timestamp: float,
        iteration: IterationStats,
    ) -> None:
        self._update_stats_from_output(state, output, timestamp, iteration)
        reader, reason = self._readers[output.request_id], output.finish_reason
        if state.is_prefilling:
            state.is_prefilling = False
            if output.prefill_stats is not None:
                state.num_cached_tokens = output.prefill_stats.num_cached_tokens
            num_cached = state.num_cached_tokens
        else:
            num_cached = 0
        if reason is not None:
            self._end(output, state, reason, iteration)
        try:
            if reason is FinishReason.ERROR:
                reader.fail("the request failed in the engine")
            elif output.new_token_ids or reason is not None:
                reader.put(_choice(output, num_cached))
        except Exception as error:
            # Raised further, it would end the outputs of all requests.
            log.exception("reader of a request failed", id=output.request_id)
            reader.fail(str(error))

    def _end(
        self,
        output: EngineCoreOutput,
        state: RequestState,
        reason: FinishReason,
        iteration: IterationStats,
    ) -> None:
        del self.request_states[output.request_id], self._readers[output.request_id]
        self._update_stats_from_finished(state, reason, iteration)
        if self.tracing_enabled:
            self.do_tracing(output, state, iteration)


def _choice(output: EngineCoreOutput, num_cached: int) -> Choice:
    reason, logprobs = output.finish_reason, output.new_logprobs
    prompt = output.new_prompt_logprobs_tensors
    return Choice(
        output.new_token_ids,
        None if reason is None else str(reason),
        output.stop_reason,
        None if logprobs is None else packed(logprobs),
        num_cached,
        None if prompt is None else packed(prompt),
    )
