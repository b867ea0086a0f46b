"""Stock vLLM with the engine arguments of an instance and its own scheduler."""

import sys

from macroserve.engine.settings import EngineSettings


def engine_flags(settings: EngineSettings) -> tuple[str, ...]:
    """Return the flags of the engine, which every command that runs vLLM takes."""
    sizes = settings.small
    return (
        *("--model", settings.model, "--served-model-name", settings.served_name),
        *("--max-model-len", str(settings.max_model_len), "--dtype", settings.dtype),
        *("--block-size", str(sizes.block_size)),
        *("--kv-cache-memory-bytes", str(settings.small_cache_bytes)),
        *("--max-num-batched-tokens", str(sizes.max_batch_tokens)),
        *("--max-num-seqs", str(sizes.max_num_seqs), "--enforce-eager"),
    )


def api_server(settings: EngineSettings, port: int) -> tuple[str, ...]:
    """Return the command of vLLM's own API server on 127.0.0.1, which writes few logs, and tells
    what its prefix cache had, as Macroserve's does."""
    return (
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *engine_flags(settings),
        *("--host", "127.0.0.1", "--port", str(port), "--enable-prompt-tokens-details"),
        *("--disable-uvicorn-access-log", "--disable-log-stats"),
    )
