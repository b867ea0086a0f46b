"""A separate process compiles clients' schemas, grammars and regular expressions once.

vLLM compiles them when a request enters, on the event loop, in the ingress and again in the
instance; eighteen kilobytes then block every stream for a minute. Here the ingress admits a request
after one compilation in a process with limits on time and memory (engine.forked), by the engine's
own backend: a constraint that compiles there also compiles in the engine's threads. Neither event
loop compiles.
"""

import asyncio
import hashlib
import sys
from collections import OrderedDict
from http import HTTPStatus
from typing import Any

import msgspec
from vllm.config import VllmConfig
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.structured_output import backend_xgrammar

from macroserve.engine.forked import CallDiedError, CallsBusyError, CallTimeoutError, ForkedCalls
from macroserve.engine.settings import EngineSettings
from macroserve.engine.tokens import RefusedError

TIMEOUT_S = 5.0
MEMORY_BYTES = 1 << 30
CACHED_RESULTS = 256
SERVER = "macroserve.engine.vllm.compilation"


_validate_xgrammar_grammar = backend_xgrammar.validate_xgrammar_grammar


def _left_to_checks(params: SamplingParams) -> None:
    """Replace vLLM's validation: the constraint is checked before the request is admitted."""


class CompileResult(msgspec.Struct, frozen=True):
    """A compilation has a result."""

    problem: str | None = None
    """Reason why the constraint cannot be used; None if it can."""
    grammar: str | None = None
    """Grammar that replaces a list of choices; None for other constraints."""


def backend_of(config: VllmConfig) -> str:
    """Return the one backend that an engine compiles with.

    vLLM's ``auto`` means the backend of the first request; here it is always the one that vLLM
    tries first.
    """
    backend = config.structured_outputs_config.backend
    return "xgrammar" if backend == "auto" else backend


class CheckedInputProcessor(InputProcessor):
    """The processor accepts requests whose constraint was checked before and does not compile it
    again."""

    def __init__(self, config: VllmConfig, *args: Any) -> None:
        super().__init__(config, *args)
        self._backend = backend_of(config)
        self.structured_outputs_config = None

    def _validate_params(self, params, supported_tasks):
        if isinstance(params, SamplingParams) and params.structured_outputs is not None:
            params.structured_outputs._backend = self._backend
        return super()._validate_params(params, supported_tasks)


class GrammarChecks:
    """The checks start before the first request, and remember the result of each constraint."""

    def __init__(self, settings: EngineSettings) -> None:
        # A chat template may be too long for an argument of a process.
        arguments = msgspec.json.encode({**settings.to_dict(), "api": {}}).decode()
        self._calls = ForkedCalls([sys.executable, "-m", SERVER, arguments], TIMEOUT_S)
        self._results: OrderedDict[bytes, asyncio.Task[CompileResult]] = OrderedDict()

    def install(self) -> None:
        """Replace vLLM's validation, before the application is built."""
        # vLLM's request models and tool parsers call it, too, while they read a request.
        backend_xgrammar.validate_xgrammar_grammar = _left_to_checks

    async def start(self) -> None:
        """Prepare for the first constraint, which otherwise waits for the preparation."""
        await self._calls.start()

    async def stop(self) -> None:
        backend_xgrammar.validate_xgrammar_grammar = _validate_xgrammar_grammar
        await self._calls.stop()

    async def admit(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters to continue with.

        Raises VLLMValidationError (400) for a constraint that cannot be compiled in time,
        RefusedError (503) if too many are being compiled.
        """
        constraint = params.structured_outputs
        if constraint is None or constraint.all_constraints_none():
            return params
        try:
            result = await self._result(msgspec.json.encode(constraint))
        except CallsBusyError:
            message = "schemas and grammars cannot be compiled at the moment; retry later"
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, message) from None
        if result.problem is not None:
            raise VLLMValidationError(result.problem, parameter="structured_outputs")
        if result.grammar is not None:
            params = params.clone()
            params.structured_outputs = StructuredOutputsParams(grammar=result.grammar)
        return params

    async def _result(self, constraint: bytes) -> CompileResult:
        key = hashlib.sha256(constraint).digest()
        task = self._results.get(key)
        if task is None:
            task = self._results[key] = asyncio.create_task(self._check(constraint))
            if len(self._results) > CACHED_RESULTS:
                self._results.popitem(last=False)
        self._results.move_to_end(key)
        try:
            # The same constraint of another client goes on when this one leaves.
            return await asyncio.shield(task)
        except CallsBusyError:
            self._results.pop(key, None)
            raise

    async def _check(self, constraint: bytes) -> CompileResult:
        what = "the schema, grammar or regular expression of this request"
        try:
            return msgspec.json.decode(await self._calls.call(constraint), type=CompileResult)
        except CallTimeoutError:
            return CompileResult(
                f"{what} takes longer than {TIMEOUT_S:g} s to compile; make it simpler"
            )
        except CallDiedError:
            limit = MEMORY_BYTES >> 20
            return CompileResult(f"{what} cannot be compiled within {limit} MiB; make it simpler")
