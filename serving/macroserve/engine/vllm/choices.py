"""vLLM's token endpoint without its stream of events: checks are vLLM's own, tokens come as they
are.

Its events cost more CPU than all else that a token meets in the instance's server.
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
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.logprobs import LogprobsProcessor
from vllm.v1.engine.output_processor import RequestOutputCollector
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
from macroserve.engine.vllm.differences import not_passed_on
from macroserve.engine.vllm.features import decode_features, prompt_with
from macroserve.engine.vllm.prompt_logprobs import packed

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have."""


class ServingChoices(ServingTokens):
    """The endpoint's handler passes choices to a reader where vLLM's yields events."""

    _llm: AsyncLLM

    @classmethod
    def of(cls, state: State) -> Self:
        """Return a handler with the parts of the one that an application has."""
        handler = cls.__new__(cls)
        for name, value in vars(state.serving_tokens).items():
            setattr(handler, name, value)
        handler._llm = state.serving_tokens.engine_client
        prepared: Any = _Prepared(handler._llm)
        handler.engine_client = prepared
        return handler

    async def submit(self, body: dict[str, Any], reader: TokenReader) -> Leave:
        """Check a request and start it. Raises RefusedError where vLLM would answer with an
        error."""
        try:
            seen = await _seen(body)
            request = GenerateRequest.model_validate({**body, "features": None, "stream": True})
            found: Any = await self.serve_tokens(request)
            if isinstance(found, ErrorResponse):
                raise RefusedError(found.error.code, found.error.message)
            add_request: AddRequest = found
            collector = await add_request(**seen, **not_passed_on(body))
        except ValidationError as error:
            raise RefusedError(400, _problem(error)) from error
        except VLLMValidationError as error:
            raise RefusedError(400, str(error)) from error
        passing = _Passing(collector.request_id, reader, self._choice_of(request))
        if state := self._llm.output_processor.request_states.get(collector.request_id):
            state.queue = passing
            processor: LogprobsProcessor | None = state.logprobs_processor
            # They go on as they are.
            setattr(processor, "_update_prompt_logprobs", passing.keep)  # noqa: B010
        passing.put_earlier(collector)

        async def leave() -> None:
            await self._llm.abort(collector.request_id, internal=True)

        return leave

    def serve_tokens_stream_generator(  # type: ignore[override]
        self, request: GenerateRequest, result_generator: "AddRequest", *args: Any
    ) -> "AddRequest":
        """Return what ``_Prepared`` has instead of a generator."""
        return result_generator

    def _choice_of(self, request: GenerateRequest) -> Callable[[CompletionOutput, int], Choice]:
        """Return how an output becomes a choice.

        The function's second argument: prompt tokens that the prefix cache had.
        """
        num_logprobs = request.sampling_params.logprobs

        def choice(output: CompletionOutput, num_cached: int) -> Choice:
            return Choice(
                as_list(output.token_ids),
                output.finish_reason,
                output.stop_reason,
                None if num_logprobs is None else _logprobs(output, num_logprobs),
                num_cached,
            )

        return choice


AddRequest = Callable[..., Awaitable[RequestOutputCollector]]
"""The call adds a request; it may be given another prompt."""


async def _seen(body: dict[str, Any]) -> dict[str, MultiModalInput]:
    """Return the prompt with the images of a request, if it has any. The endpoint's own form of
    images leaves out which tokens of a placeholder are an image's."""
    if body.get("features") is None:
        return {}
    try:
        features = await asyncio.to_thread(decode_features, body["features"])
        return {"prompt": prompt_with(features, body["token_ids"], body.get("cache_salt"))}
    except ValueError as error:
        raise RefusedError(400, str(error)) from error


class _Prepared:
    """The engine client prepares requests: ``generate`` returns the call that adds one.

    A generator of each request would have to be a task of its own, woken by each token.
    """

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


class _Passing(RequestOutputCollector):
    """vLLM's output processor puts a request's outputs here, and they go on to its reader."""

    def __init__(
        self,
        request_id: str,
        reader: TokenReader,
        choice: Callable[[CompletionOutput, int], Choice],
    ) -> None:
        super().__init__(RequestOutputKind.DELTA, request_id)
        self._reader = reader
        self._choice = choice
        self._is_first = True
        self._prompt_logprobs: PromptLogprobs | None = None

    def keep(self, tensors: LogprobsTensors) -> None:
        """Take the logprobs of the prompt, which come before the output that has them."""
        self._prompt_logprobs = packed(tensors)

    def put_earlier(self, collector: RequestOutputCollector) -> None:
        """Take over what came while the request was being added."""
        try:
            output = collector.get_nowait()
        except Exception as error:
            self.put(error)
        else:
            if output is not None:
                self.put(output)

    def put(self, output: RequestOutput | PoolingRequestOutput | Exception) -> None:
        try:
            if isinstance(output, Exception):
                raise output
            assert isinstance(output, RequestOutput), "only text generation is served"
            self._put(output)
        except Exception as error:
            # Raised here, it would end the outputs of all requests.
            self._reader.fail(str(error) or type(error).__name__)

    def _put(self, result: RequestOutput) -> None:
        if result.prompt_logprobs and len(result.prompt_logprobs) > 1:
            raise GenerationError("the prompt's logprobs came before the request was added")
        for output in result.outputs:
            if output.finish_reason == "error":
                raise GenerationError("Internal server error")
            if output.token_ids or output.finish_reason is not None:
                num_cached = (result.num_cached_tokens or 0) if self._is_first else 0
                self._is_first = False
                choice = self._choice(output, num_cached)
                if logprobs := self._prompt_logprobs:
                    self._prompt_logprobs = None
                    choice = msgspec.structs.replace(choice, prompt_logprobs=logprobs)
                self._reader.put(choice)


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
    """Return a logprob that JSON has, too, and its rank; vLLM's rank is 0 for what is no number."""
    logprob = LEAST_LOGPROB if math.isnan(found.logprob) else found.logprob
    return max(logprob, LEAST_LOGPROB), found.rank or None


def _problem(error: ValidationError) -> str:
    """Return the first problem in one sentence, without the input, which holds a prompt."""
    found = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, found['loc']))}: {found['msg']}"
