"""vLLM's OpenAI frontend, with engines in other processes.

``AsyncLLM`` consists of an input processor, an output processor and an engine-core client. The
client here sends each tokenized request to an instance and receives token ids. All processing of
text (chat templates, tools, reasoning, stop strings, logprobs, several choices) is vLLM's code, and
no engine runs in this process.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import msgspec
from vllm.config import VllmConfig
from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.lora.request import LoRARequest
from vllm.multimodal.cache.base import MultiModalCache
from vllm.pooling_params import PoolingParams
from vllm.renderers import renderer_from_config
from vllm.sampling_params import SamplingParams
from vllm.tasks import SupportedTask
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.engine.output_processor import (
    OutputProcessor,
    OutputProcessorOutput,
    RequestOutputCollector,
    RequestState,
)
from vllm.v1.metrics.stats import PrefillStats

from macroserve.api.logs import get_logger
from macroserve.engine.tokens import (
    Choice,
    RefusedError,
    StopStringMet,
    TokenRequest,
    TokenStreamer,
    pack,
)
from macroserve.engine.vllm import chunks, images
from macroserve.engine.vllm.features import MAX_FEATURES_BYTES, MAX_HELD_BYTES, encode_features
from macroserve.engine.vllm.grammar import CheckedInputProcessor, GrammarChecks
from macroserve.engine.vllm.logprobs import check_prompt_logprobs, unpacked, unpacked_prompt
from macroserve.engine.vllm.rendering import bound_rendering

log = get_logger(__name__)

# Fields that only concern text, which the instance does not need.
_TEXT_FIELDS = (
    "stop",
    "include_stop_str_in_output",
    "output_text_buffer_length",
    "output_kind",
    "skip_clone",
    "n",
    "max_tokens",
)

MAX_HELD_TOKENS = 1 << 21
"""Limit on one request's prompt tokens, summed over its choices."""

_FINISH_REASONS = {str(reason): reason for reason in FinishReason}


class RemoteLLM(AsyncLLM):
    """An ``AsyncLLM`` over the instances of ``streamer``.

    admit: called before a response is started; raises ``RefusedError`` to shed load.
    grammars: checks the constraint of a request before it is sent.
    """

    def __init__(
        self,
        config: VllmConfig,
        streamer: TokenStreamer,
        admit: Callable[[], None],
        grammars: GrammarChecks,
    ) -> None:
        # AsyncLLM's own constructor would start an engine; these are the parts that serve text.
        self.vllm_config = config
        self.model_config = config.model_config
        self.scheduler_config = config.scheduler_config
        self.observability_config = config.observability_config
        self.log_requests = self.log_stats = False
        bound_rendering()
        images.install()
        chunks.install()
        self.renderer = renderer_from_config(config)
        self.input_processor = CheckedInputProcessor(config, self.renderer)
        self.output_processor = TextProcessor(
            self.renderer.tokenizer,
            log_stats=False,
            stream_interval=config.scheduler_config.stream_interval,
        )
        self.admission_stats = self.logger_manager = self.profiler = None
        self.output_handler: asyncio.Task | None = None
        self._client_count = 1
        self._admit = admit
        self._grammars = grammars
        vocab_size = config.model_config.get_vocab_size()
        ended = self.output_processor.ended
        self.engine_core = RemoteCore(streamer, self._fail, ended, vocab_size)

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        try:
            self._admit()
        except RefusedError as refusal:
            raise _http_error(refusal) from refusal

    async def add_request(
        self,
        request_id: str,
        prompt: Any,
        params: SamplingParams | PoolingParams,
        *args: Any,
        **kwargs: Any,
    ) -> RequestOutputCollector:
        if isinstance(params, SamplingParams):
            try:
                params = await self._grammars.admit(params)
            except RefusedError as refusal:
                raise _http_error(refusal) from refusal
            _check_size(prompt, params.n)
        return await super().add_request(request_id, prompt, params, *args, **kwargs)

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        """Abort requests whose client has left; stop strings end requests in the output handler."""
        request_ids = (request_id,) if isinstance(request_id, str) else tuple(request_id)
        self.engine_core.cancel(self.output_processor.abort_requests(request_ids, internal))

    def _fail(self, request_id: str, refusal: RefusedError) -> None:
        """End a request with an error that keeps its HTTP status."""
        if state := self.output_processor.request_states.get(request_id):
            self.output_processor.abort_requests([request_id], internal=True)
            if state.queue is not None:
                state.queue.put(_http_error(refusal))


class TextProcessor(OutputProcessor):
    """An output processor that counts the tokens of ended requests.

    Attributes:
        ended: tokens of each request that the last call of ``process_outputs`` ended.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ended: dict[str, int] = {}

    def process_outputs(self, *args: Any, **kwargs: Any) -> OutputProcessorOutput:
        self.ended.clear()
        return super().process_outputs(*args, **kwargs)

    def _finish_request(self, req_state: RequestState) -> None:
        assert req_state.detokenizer is not None, "only text generation is served"
        self.ended[req_state.request_id] = req_state.detokenizer.num_output_tokens()
        super()._finish_request(req_state)


class RemoteCore(EngineCoreClient):
    """An engine-core client with a task per sequence.

    ended: see ``TextProcessor``.
    """

    def __init__(
        self,
        streamer: TokenStreamer,
        fail: Callable[[str, RefusedError], None],
        ended: Mapping[str, int],
        vocab_size: int,
    ) -> None:
        self.resources = SimpleNamespace(engine_dead=False)
        self._streamer = streamer
        self._fail = fail
        self._ended = ended
        self._vocab_size = vocab_size
        self._outputs: asyncio.Queue[EngineCoreOutput] = asyncio.Queue()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._held_bytes = 0

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        task = asyncio.create_task(self._run(request))
        self._tasks[request.request_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(request.request_id, None))

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """Abort requests that met a stop string; called by the output handler."""
        for request_id in request_ids:
            self.cancel([request_id], StopStringMet(self._ended[request_id]))

    def cancel(self, request_ids: Iterable[str], message: StopStringMet | None = None) -> None:
        for request_id in request_ids:
            if task := self._tasks.get(request_id):
                task.cancel(message)

    async def get_output_async(self) -> EngineCoreOutputs:
        """Return all available outputs, at least one."""
        outputs = [await self._outputs.get()]
        while not self._outputs.empty():
            outputs.append(self._outputs.get_nowait())
        return EngineCoreOutputs(outputs=outputs)

    async def add_lora_async(self, lora_request: LoRARequest) -> bool:
        """Accept an adapter by its name; the instances load it."""
        return True

    async def get_supported_tasks_async(self) -> tuple[SupportedTask, ...]:
        return ("generate",)

    def shutdown(self, timeout: float | None = None) -> None:
        for task in list(self._tasks.values()):
            task.cancel()

    async def _run(self, request: EngineCoreRequest) -> None:
        def put(choice: Choice) -> None:
            self._outputs.put_nowait(_output(request.request_id, choice))

        features = b""
        try:
            if request.mm_features:
                features = await asyncio.to_thread(encode_features, request.mm_features)
                request.mm_features = None  # as large again
                self._hold(len(features))
            await self._streamer.stream(self._token_request(request, features), put)
        except RefusedError as refusal:
            self._fail(request.request_id, refusal)
        except Exception:
            # A bug must not leave the request hanging.
            log.exception("request failed", id=request.request_id)
            refusal = RefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error")
            self._fail(request.request_id, refusal)
        finally:
            self._held_bytes -= len(features)

    def _token_request(self, request: EngineCoreRequest, features: bytes) -> TokenRequest:
        params, token_ids = request.sampling_params, request.prompt_token_ids
        if params is None or token_ids is None:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "only text generation is served")
        check_prompt_logprobs(params, len(token_ids), self._vocab_size)
        assert params.max_tokens is not None, "the input processor sets max_tokens"
        return TokenRequest(
            request_id=request.request_id,
            info=self._streamer.info(request.request_id),
            token_ids=pack(token_ids),
            max_new_tokens=params.max_tokens,
            sampling=_sampling(params),
            adapter=request.lora_request and request.lora_request.lora_name,
            cache_salt=request.cache_salt,
            features=features,
            reasoning_ended=request.reasoning_ended,
            reasoning_parser_kwargs=request.reasoning_parser_kwargs,
            session=request.session_id,
        )

    def _hold(self, num_bytes: int) -> None:
        self._held_bytes += num_bytes
        if self._held_bytes > MAX_HELD_BYTES:
            message = "too many images in running requests; retry later"
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, message)


def _check_size(prompt: Any, n: int) -> None:
    """Raise VLLMValidationError if ``n`` copies of the prompt's tokens or images are too large."""
    if not isinstance(prompt, dict):
        return
    seen = prompt.get("mm_kwargs")
    num_bytes = n * MultiModalCache.get_item_size(seen) if seen else 0
    if num_bytes > MAX_FEATURES_BYTES:
        raise VLLMValidationError(
            f"the images take {num_bytes >> 20} MiB in the model, with {n} choices; at most "
            f"{MAX_FEATURES_BYTES >> 20} MiB are allowed: send fewer or smaller images",
            parameter="messages",
        )
    tokens = prompt.get("prompt_token_ids")
    if tokens is not None and n * len(tokens) > MAX_HELD_TOKENS:
        raise VLLMValidationError(
            f"n={n} times the prompt's {len(tokens)} tokens is more than {MAX_HELD_TOKENS}; "
            "ask for fewer choices",
            parameter="n",
        )


def _sampling(params: SamplingParams) -> dict[str, Any]:
    values = msgspec.to_builtins(params)
    for name in _TEXT_FIELDS:
        values.pop(name, None)
    return {**values, "detokenize": False}


def _output(request_id: str, choice: Choice) -> EngineCoreOutput:
    return EngineCoreOutput(
        request_id,
        choice.token_ids or [],
        new_logprobs=choice.logprobs and unpacked(choice.logprobs),
        new_prompt_logprobs_tensors=choice.prompt_logprobs
        and unpacked_prompt(choice.prompt_logprobs),
        finish_reason=_FINISH_REASONS[choice.finish_reason] if choice.finish_reason else None,
        stop_reason=choice.stop_reason,
        prefill_stats=PrefillStats(num_cached_tokens=choice.num_cached)
        if choice.num_cached
        else None,
    )


def _http_error(refusal: RefusedError) -> GracefulHTTPError:
    return GracefulHTTPError(refusal.message, HTTPStatus(refusal.status))
