"""Compilation of a constraint as in the engine, in a process that can be killed.

Run as a program (``python -m``), this module is the server that forks these processes.
"""

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_types import StructuredOutputBackend, StructuredOutputGrammar
from vllm.v1.structured_output.request import StructuredOutputRequest, get_structured_output_key

from macroserve.engine.forked import serve
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.grammar import COMPILE_CPU_S, MEMORY_BYTES, CompileResult, backend_of
from macroserve.engine.vllm.options import frontend_config

PROBED_TOKENS = 16
MAX_TOKEN_S = 0.25
"""Limit on the processor time of one token's grammar mask, which blocks the engine's loop."""


def prepare(settings: EngineSettings) -> Callable[[bytes], bytes]:
    """Return a function that compiles a constraint, for one model."""
    config = frontend_config(settings)
    tokenizer = cached_tokenizer_from_config(config.model_config)
    backend = _backend(config)

    def check(constraint: bytes) -> bytes:
        outputs = StructuredOutputsParams(**msgspec.json.decode(constraint))
        params = SamplingParams(structured_outputs=outputs)
        has_choices = outputs.choice is not None
        try:
            params._validate_structured_outputs(
                config.model_config, config.structured_outputs_config, tokenizer
            )
            kind, text = get_structured_output_key(outputs)
            problem = _probe(backend, backend.compile_grammar(kind, text))
        except MemoryError:
            raise
        except Exception as error:
            problem = f"the constraint of this request cannot be used: {str(error)[:500]}"
        return msgspec.json.encode(CompileResult(problem, outputs.grammar if has_choices else None))

    return check


def _backend(config: Any) -> StructuredOutputBackend:
    """Build the backend as the engine does, by compiling a small grammar."""
    manager = StructuredOutputManager(config)
    manager._use_async_grammar_compilation = False
    outputs = StructuredOutputsParams(json_object=True)
    outputs._backend = backend_of(config)
    first = SimpleNamespace(
        request_id="first",
        sampling_params=SamplingParams(structured_outputs=outputs),
        structured_output_request=StructuredOutputRequest(outputs),
    )
    manager.grammar_init(cast(Any, first))
    assert manager.backend is not None
    return manager.backend


def _probe(backend: StructuredOutputBackend, grammar: StructuredOutputGrammar) -> str | None:
    """Return the problem of a grammar that compiles but blocks the engine or allows no token."""
    mask = backend.allocate_token_bitmask(1)
    for step in range(PROBED_TOKENS):
        if grammar.is_terminated():
            return None
        started = time.thread_time()
        grammar.fill_bitmask(mask, 0)
        if time.thread_time() - started > MAX_TOKEN_S:
            return "the grammar of this request takes too long for each token; make it simpler"
        words = mask[0].tolist()
        token = next((i for i, word in enumerate(words) if word), None)
        if token is None:
            return None if step else "no token of this model can start what the grammar allows"
        word = words[token] & 0xFFFFFFFF
        first = (word & -word).bit_length() - 1
        if not grammar.accept_tokens("probe", [token * 32 + first]):
            return None
    return None


def main() -> None:
    settings = EngineSettings.from_dict(msgspec.json.decode(sys.argv[1]))
    serve(lambda: prepare(settings), COMPILE_CPU_S, MEMORY_BYTES)


if __name__ == "__main__":
    main()
