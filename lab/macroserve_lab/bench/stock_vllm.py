"""Stock vLLM with the engine arguments of an instance and its own scheduler."""

import sys

from macroserve.engine.settings import EngineSettings


def engine_flags(settings: EngineSettings) -> tuple[str, ...]:
    """Return the engine's flags for vLLM's commands; one that rehearses has vLLM's own sizes."""
    named = (
        *("--model", settings.model, "--served-model-name", settings.served_name),
        *("--max-model-len", str(settings.max_model_len), "--dtype", settings.dtype),
    )
    if settings.rehearse:
        return (*named, "--tensor-parallel-size", str(settings.tensor_parallel))
    sizes = settings.small
    return (
        *named,
        *("--block-size", str(sizes.block_size)),
        *("--kv-cache-memory-bytes", str(settings.small_cache_bytes)),
        *("--max-num-batched-tokens", str(sizes.max_batch_tokens)),
        *("--max-num-seqs", str(sizes.max_num_seqs), "--enforce-eager"),
    )


def api_server(settings: EngineSettings, port: int) -> tuple[str, ...]:
    """Return the command of vLLM's API server on 127.0.0.1, with few logs, and with cached tokens
    in its responses, as in Macroserve."""
    return (
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *engine_flags(settings),
        *("--host", "127.0.0.1", "--port", str(port), "--enable-prompt-tokens-details"),
        *("--disable-uvicorn-access-log", "--disable-log-stats"),
    )
