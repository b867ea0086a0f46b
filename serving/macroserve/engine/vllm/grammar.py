"""Checks of clients' schemas, grammars and regular expressions in a separate process.

vLLM compiles them when a request arrives, on the event loops of the ingress and of the instance;
eighteen kilobytes can block all streams for a minute. Here the ingress admits a request after one
compilation by the engine's backend in a process with limits on processor time and memory
(engine.forked). The engine then compiles it again in its threads, but neither event loop does.
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

from macroserve.engine.forked import CallDiedError, CallsBusyError, CallTooLongError, ForkedCalls
from macroserve.engine.settings import EngineSettings
from macroserve.engine.tokens import RefusedError

COMPILE_CPU_S = 5.0
"""Limit on the processor time of one compilation."""

MEMORY_BYTES = 1 << 30
CACHED_RESULTS = 256
SERVER = "macroserve.engine.vllm.compilation"


_validate_xgrammar_grammar = backend_xgrammar.validate_xgrammar_grammar


def _left_to_checks(params: SamplingParams) -> None:
    """Replace vLLM's validation, as ``GrammarChecks`` checks the constraint."""


class CompileResult(msgspec.Struct, frozen=True):
    problem: str | None = None
    """Reason why the constraint cannot be used; None if it can."""
    grammar: str | None = None
    """Grammar that replaces a list of choices; None for other constraints."""


def backend_of(config: VllmConfig) -> str:
    """Return the backend that the engine compiles with. vLLM's ``auto`` depends on the first
    request; here it means the backend that vLLM tries first."""
    backend = config.structured_outputs_config.backend
    return "xgrammar" if backend == "auto" else backend


class CheckedInputProcessor(InputProcessor):
    """An input processor for requests with checked constraints, which it does not compile."""

    def __init__(self, config: VllmConfig, *args: Any) -> None:
        super().__init__(config, *args)
        self._backend = backend_of(config)
        self.structured_outputs_config = None

    def _validate_params(self, params, supported_tasks):
        if isinstance(params, SamplingParams) and params.structured_outputs is not None:
            params.structured_outputs._backend = self._backend
        return super()._validate_params(params, supported_tasks)


class GrammarChecks:
    """Checks of constraints, with a cache of results."""

    def __init__(self, settings: EngineSettings) -> None:
        # Without the chat template, which may be too long for a command line.
        arguments = msgspec.json.encode({**settings.to_dict(), "api": {}}).decode()
        self._calls = ForkedCalls([sys.executable, "-m", SERVER, arguments], COMPILE_CPU_S)
        self._results: OrderedDict[bytes, asyncio.Task[CompileResult]] = OrderedDict()

    def install(self) -> None:
        """Replace vLLM's validation, before the application is built."""
        # vLLM's request models and tool parsers also call it.
        backend_xgrammar.validate_xgrammar_grammar = _left_to_checks

    async def start(self) -> None:
        """Start the process before the first constraint, which would wait for its preparation."""
        await self._calls.start()

    async def stop(self) -> None:
        backend_xgrammar.validate_xgrammar_grammar = _validate_xgrammar_grammar
        await self._calls.stop()

    async def admit(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters to use. Raises VLLMValidationError (400) for a constraint that
        cannot be compiled in time, RefusedError (503) if too many are being compiled."""
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
            # Shielded, as other clients may wait for the same constraint.
            return await asyncio.shield(task)
        except CallsBusyError:
            self._results.pop(key, None)
            raise

    async def _check(self, constraint: bytes) -> CompileResult:
        what = "the schema, grammar or regular expression of this request"
        try:
            return msgspec.json.decode(await self._calls.call(constraint), type=CompileResult)
        except CallTooLongError:
            limit_s = f"{COMPILE_CPU_S:g} s of processor time"
            return CompileResult(f"{what} takes more than {limit_s} to compile; make it simpler")
        except CallDiedError:
            limit = MEMORY_BYTES >> 20
            return CompileResult(f"{what} cannot be compiled within {limit} MiB; make it simpler")
