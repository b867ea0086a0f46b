"""From an instance's settings to vLLM's engine arguments."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any, get_args

from pydantic import TypeAdapter
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.sampling_params import MAX_LOGPROB_TOKEN_IDS
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm import OPTIONS_KEY

SCHEDULER_CLASS = "macroserve.engine.vllm.scheduler.MacroserveScheduler"
HYBRID_WORKER_CLASS = "macroserve.engine.vllm.hybrid.worker.HybridWorker"


def frontend_args(settings: EngineSettings) -> dict[str, Any]:
    """What an ingress and an instance must agree on: the model and its tokenizer."""
    return {
        "model": settings.model,
        "served_model_name": [settings.served_name],
        "max_model_len": settings.max_model_len,
        "dtype": settings.dtype,
        "max_num_seqs": settings.max_num_seqs,
        # A grammar waits for the end of the thoughts, which the engine must know.
        "reasoning_parser": settings.api.get("reasoning_parser") or "",
        **_of_their_classes(settings.args),
    }


def _of_their_classes(args: dict[str, Any]) -> dict[str, Any]:
    """Mappings as the classes that vLLM's command line makes of them: ``AsyncEngineArgs`` itself
    does it for some arguments only. Raises ValueError for what a class does not take."""
    types = {field.name: field.type for field in fields(AsyncEngineArgs)}

    def typed(name: str, value: Any) -> Any:
        kinds = (types[name], *get_args(types[name]))
        found = [kind for kind in kinds if isinstance(kind, type) and is_dataclass(kind)]
        if not found or not isinstance(value, dict):
            return value
        return TypeAdapter(found[0]).validate_python(value)

    return {name: typed(name, value) for name, value in args.items()}


def engine_args(settings: EngineSettings, pool: Pool, status_path: str | None) -> AsyncEngineArgs:
    """Arguments of one instance's engine; raises ValueError for what the adapter cannot serve."""
    if settings.pipeline_parallel > 1:
        raise ValueError(
            "engine.pipelineParallel above 1 is not supported with engine.type vLLM: "
            "the scheduler decides one batch at a time"
        )
    on_cpu = current_platform.is_cpu()
    return AsyncEngineArgs(
        **{
            "block_size": settings.block_size,
            "kv_cache_memory_bytes": settings.kv_cache_bytes,
            "max_num_batched_tokens": settings.max_batch_tokens,
            "tensor_parallel_size": settings.tensor_parallel,
            "enforce_eager": on_cpu,
            # The scheduler counts every token of a prompt as work to do.
            "enable_prefix_caching": False,
            # A batch is decided when the one before it is known.
            "async_scheduling": False,
            **frontend_args(settings),
            "max_logprobs": _max_logprobs(settings),
        },
        scheduler_cls=SCHEDULER_CLASS,
        additional_config={
            OPTIONS_KEY: {
                "strategy": settings.strategy,
                "pool": pool.value,
                "slo": asdict(settings.slo),
                "drop_late": settings.drop_late,
                "status_path": status_path,
            }
        },
    )


def _max_logprobs(settings: EngineSettings) -> int:
    """An instance's bound is above the ingress's, which has checked the request: the ingress asks
    for one more, and counts the token ids of ``logprob_token_ids`` by a bound of their own."""
    most = settings.args.get("max_logprobs", AsyncEngineArgs.max_logprobs)
    return most if most < 0 else max(most, MAX_LOGPROB_TOKEN_IDS) + 1


def with_hybrid_cache(args: AsyncEngineArgs) -> AsyncEngineArgs:
    """For an engine some of whose requests keep hidden states.

    It runs eagerly: each layer's input is taken from the model on its way, not from a graph. On a
    GPU it attends by a backend that the cache knows; which one vLLM takes depends on the device.
    """
    # The second model runner does not tell attention which request a row of the batch is.
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    attention = args.attention_config
    if not (current_platform.is_cpu() or args.attention_backend or attention.backend):
        attention = replace(attention, backend=AttentionBackendEnum.FLASH_ATTN)
    return replace(
        args, worker_cls=HYBRID_WORKER_CLASS, enforce_eager=True, attention_config=attention
    )


def frontend_config(settings: EngineSettings) -> VllmConfig:
    """The configuration of a frontend without an engine."""
    with _models_inspected_here():
        return AsyncEngineArgs(**frontend_args(settings)).create_engine_config()


@contextmanager
def _models_inspected_here() -> Iterator[None]:
    """vLLM asks a new process what a model's class can do, so that no device is initialised in this
    one. A frontend uses none, and the new process takes ten CPU seconds to import everything."""
    elsewhere = registry._run_in_subprocess
    registry._run_in_subprocess = lambda inspect: inspect()
    try:
        yield
    finally:
        registry._run_in_subprocess = elsewhere
