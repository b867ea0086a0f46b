"""vLLM's token endpoint without its stream of events: checks are vLLM's own, tokens come as they
are.

Its events cost more CPU than all else that a token meets in the instance's server.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Self

import msgspec
from pydantic import ValidationError
from starlette.datastructures import State
from vllm.entrypoints.generate.base.protocol import RequestResponseMetadata
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest
from vllm.entrypoints.scale_out.token_in_token_out.serving import ServingTokens
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMValidationError
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.utils.collection_utils import as_list

from macroserve.engine.tokens import Choice, Logprobs, RefusedError


class ServingChoices(ServingTokens):
    """The endpoint's handler yields choices where vLLM's yields events."""

    @classmethod
    def of(cls, state: State) -> Self:
        """Return a handler with the parts of the one that an application has."""
        handler = cls.__new__(cls)
        for name, value in vars(state.serving_tokens).items():
            setattr(handler, name, value)
        return handler

    async def submit(self, body: dict[str, Any]) -> AsyncGenerator[Choice, None]:
        """Check a request and return its choices. Raises RefusedError where vLLM would answer with
        an error."""
        try:
            request = GenerateRequest.model_validate({**body, "stream": True})
            found: Any = await self.serve_tokens(request)
        except ValidationError as error:
            raise RefusedError(400, _problem(error)) from error
        except VLLMValidationError as error:
            raise RefusedError(400, str(error)) from error
        if isinstance(found, ErrorResponse):
            raise RefusedError(found.error.code, found.error.message)
        return found

    async def serve_tokens_stream_generator(  # type: ignore[override]
        self,
        request: GenerateRequest,
        result_generator: AsyncGenerator[RequestOutput, None],
        request_id: str,
        model_name: str,
        request_metadata: RequestResponseMetadata,
    ) -> AsyncGenerator[Choice, None]:
        num_logprobs = request.sampling_params.logprobs
        is_first = True
        # vLLM ends the request when its generator is closed, which nothing else does in time.
        async with aclosing(result_generator):
            async for result in result_generator:
                for output in result.outputs:
                    self._raise_if_error(output.finish_reason, request_id)
                    if output.token_ids or output.finish_reason is not None:
                        yield Choice(
                            as_list(output.token_ids),
                            output.finish_reason,
                            output.stop_reason,
                            None if num_logprobs is None else self._logprobs(output, num_logprobs),
                            (result.num_cached_tokens or 0) if is_first else 0,
                        )
                        is_first = False

    def _logprobs(self, output: CompletionOutput, num_logprobs: int) -> Logprobs:
        assert output.logprobs is not None, "vLLM returns the logprobs that were asked for"
        made = self._create_tokens_logprobs(output.token_ids, output.logprobs, num_logprobs)
        return msgspec.convert(made.model_dump(), Logprobs)


def _problem(error: ValidationError) -> str:
    """Return the first problem in one sentence, without the input, which holds a prompt."""
    found = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, found['loc']))}: {found['msg']}"
