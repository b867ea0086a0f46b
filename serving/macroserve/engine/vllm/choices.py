"""vLLM's token endpoint without HTTP: vLLM checks requests, and a reader gets the choices.

vLLM's server-sent events would cost more CPU time than everything else in the instance's server.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any, Self

import msgspec
from pydantic import ValidationError
from starlette.datastructures import State
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest
from vllm.entrypoints.scale_out.token_in_token_out.serving import ServingTokens
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import GenerationError, VLLMValidationError
from vllm.inputs import MultiModalInput
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, PoolingRequestOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.utils.collection_utils import as_list
from vllm.v1.engine import FinishReason
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.logprobs import LogprobsProcessor
from vllm.v1.engine.output_processor import RequestOutputCollector, RequestState
from vllm.v1.outputs import LogprobsTensors

from macroserve.engine.engine import Leave
from macroserve.engine.tokens import (
    Choice,
    Logprobs,
    PromptLogprobs,
    RefusedError,
    TokenLogprob,
    TokenReader,
    TopLogprob,
)
from macroserve.engine.vllm.features import decode_features, prompt_with
from macroserve.engine.vllm.prompt_logprobs import packed
from macroserve.engine.vllm.versions import not_passed_on

LEAST_LOGPROB = -9999.0
"""Substitute for minus infinity, which JSON does not have."""


class ServingChoices(ServingTokens):
    """The endpoint's handler, with a reader of choices instead of a generator of events."""

    _llm: AsyncLLM

    @classmethod
    def of(cls, state: State) -> Self:
        """Return a handler with the attributes of the application's one."""
        handler = cls.__new__(cls)
        for name, value in vars(state.serving_tokens).items():
            setattr(handler, name, value)
        handler._llm = state.serving_tokens.engine_client
        prepared: Any = _Prepared(handler._llm)
        handler.engine_client = prepared
        return handler

    async def submit(self, body: dict[str, Any], reader: TokenReader) -> Leave:
        """Check a request and start it. Raises RefusedError with vLLM's error."""
        try:
            seen = await _seen(body)
            request: GenerateRequest = GenerateRequest.model_validate(
                {**body, "features": None, "stream": True}
            )
            found: Any = await self.serve_tokens(request)
            if isinstance(found, ErrorResponse):
                raise RefusedError(found.error.code, found.error.message)
            add_request: AddRequest = found
            collector = await add_request(**seen, **not_passed_on(body))
        except ValidationError as error:
            raise RefusedError(400, _problem(error)) from error
        except VLLMValidationError as error:
            raise RefusedError(400, str(error)) from error
        queue = _ReaderQueue(collector.request_id, reader, request.sampling_params.logprobs)
        if state := self._llm.output_processor.request_states.get(collector.request_id):
            _ReaderState.take_over(state, queue)
        queue.put_earlier(collector)

        async def leave() -> None:
            await self._llm.abort(collector.request_id, internal=True)

        return leave

    def serve_tokens_stream_generator(  # type: ignore[override]
        self, request: GenerateRequest, result_generator: "AddRequest", *args: Any
    ) -> "AddRequest":
        """Return the call that ``_Prepared`` returns instead of a generator."""
        return result_generator


AddRequest = Callable[..., Awaitable[RequestOutputCollector]]
"""Call that adds a prepared request, optionally with another prompt."""


async def _seen(body: dict[str, Any]) -> dict[str, MultiModalInput]:
    """Return the prompt with a request's images, if any. The endpoint's own format for images lacks
    which tokens of a placeholder belong to an image."""
    if body.get("features") is None:
        return {}
    try:
        features = await asyncio.to_thread(decode_features, body["features"])
        return {"prompt": prompt_with(features, body["token_ids"], body.get("cache_salt"))}
    except ValueError as error:
        raise RefusedError(400, str(error)) from error


class _Prepared:
    """An engine client whose ``generate`` returns the call that adds a request. vLLM's generator
    would need a task per request, which each token wakes."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm

    def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **kwargs: Any
    ) -> AddRequest:
        return partial(
            self._llm.add_request, request_id, prompt=prompt, params=sampling_params, **kwargs
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)


class _ReaderQueue(RequestOutputCollector):
    """A request's queue, which passes outputs to its reader.

    num_logprobs: requested logprobs per token; None for none.
    """

    def __init__(self, request_id: str, reader: TokenReader, num_logprobs: int | None) -> None:
        super().__init__(RequestOutputKind.DELTA, request_id)
        self.num_logprobs = num_logprobs
        self._reader = reader
        self._is_first = True
        self._prompt_logprobs: PromptLogprobs | None = None

    def keep(self, tensors: LogprobsTensors) -> None:
        """Store the prompt's logprobs for the first choice."""
        self._prompt_logprobs = packed(tensors)

    def put_earlier(self, collector: RequestOutputCollector) -> None:
        """Take over outputs that arrived while the request was being added."""
        try:
            if (output := collector.get_nowait()) is not None:
                self.put(output)
        except Exception as error:
            self.put(error)

    def put(self, output: RequestOutput | PoolingRequestOutput | Exception) -> None:
        """Take an error or an output made by vLLM's own state. Raises GenerationError if the
        prompt's logprobs are lost."""
        if isinstance(output, Exception):
            self._reader.fail(str(output) or type(output).__name__)
            return
        assert isinstance(output, RequestOutput), "only text generation is served"
        if output.prompt_logprobs and len(output.prompt_logprobs) > 1:
            raise GenerationError("the prompt's logprobs came before the request was added")
        for each in output.outputs:
            self.put_choice(self.choice(each), output.num_cached_tokens)

    def choice(self, output: CompletionOutput) -> Choice:
        return Choice(
            as_list(output.token_ids),
            output.finish_reason,
            output.stop_reason,
            None if self.num_logprobs is None else _logprobs(output, self.num_logprobs),
        )

    def put_choice(self, choice: Choice, num_cached: int | None) -> None:
        """Pass a choice to the reader. Raises GenerationError if the engine failed."""
        if choice.finish_reason == "error":
            raise GenerationError("Internal server error")
        if not choice.token_ids and choice.finish_reason is None:
            return
        if self._is_first:
            self._is_first = False
            choice = msgspec.structs.replace(
                choice, num_cached=num_cached or 0, prompt_logprobs=self._prompt_logprobs
            )
        self._reader.put(choice)


class _ReaderState(RequestState):
    """A request's state that makes choices: vLLM's outputs, with thirty fields instead of six, take
    more CPU time."""

    queue: _ReaderQueue

    @classmethod
    def take_over(cls, state: RequestState, queue: _ReaderQueue) -> None:
        """Convert vLLM's state of a request."""
        state.__class__ = cls
        state.queue = queue
        processor: LogprobsProcessor | None = state.logprobs_processor
        # The prompt's logprobs are passed on as arrays.
        setattr(processor, "_update_prompt_logprobs", queue.keep)  # noqa: B010

    def make_request_output(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().make_request_output(*args, **kwargs)
        except Exception as error:
            # Raised here, it would stop the outputs of all requests.
            self.queue.put(error)

    def _new_completion_output(  # type: ignore[override]
        self,
        token_ids: list[int],
        finish_reason: FinishReason | None,
        stop_reason: int | str | None,
    ) -> Choice:
        if self.queue.num_logprobs is not None:
            output = super()._new_completion_output(token_ids, finish_reason, stop_reason)
            return self.queue.choice(output)
        reason = None if finish_reason is None else str(finish_reason)
        return Choice(token_ids, reason, stop_reason)

    def _new_request_output(  # type: ignore[override]
        self, external_req_id: str, outputs: list[Choice], *args: Any, **kwargs: Any
    ) -> None:
        self.queue.put_choice(outputs[0], self.num_cached_tokens)


def _logprobs(output: CompletionOutput, num_logprobs: int) -> Logprobs:
    """Return the logprobs of the output's tokens, as vLLM 0.32's endpoint does."""
    assert output.logprobs is not None, "vLLM returns the logprobs that were asked for"
    most = None if num_logprobs < 0 else max(num_logprobs, 1)
    rows = zip(output.token_ids, output.logprobs, strict=True)
    return Logprobs(tuple(_token_logprob(token_id, row, most) for token_id, row in rows))


def _token_logprob(
    token_id: int, row: Mapping[int, Logprob] | None, most: int | None
) -> TokenLogprob:
    if row is None or token_id not in row:
        return TokenLogprob(token_id, LEAST_LOGPROB)
    tops = tuple(TopLogprob(top, *_value(row[top])) for top in islice(row, most))
    return TokenLogprob(token_id, *_value(row[token_id]), tops)


def _value(found: Logprob) -> tuple[float, int | None]:
    """Return a logprob that is valid in JSON, and its rank; vLLM's rank of NaN is 0."""
    logprob = LEAST_LOGPROB if math.isnan(found.logprob) else found.logprob
    return max(logprob, LEAST_LOGPROB), found.rank or None


def _problem(error: ValidationError) -> str:
    """Return the first problem in one sentence, without the input, which contains a prompt."""
    found = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, found['loc']))}: {found['msg']}"
