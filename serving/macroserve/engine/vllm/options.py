"""vLLM's engine arguments for an instance's settings."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import torch
from pydantic import TypeAdapter
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from macroserve.core.engine_sizes import GIB
from macroserve.core.status import Pool
from macroserve.engine.adapter_files import MAX_RANKS, rank_of
from macroserve.engine.parallelism import check_devices, check_layers
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm import OPTIONS_KEY
from macroserve.engine.vllm.quantization import naming_quantization

SCHEDULER_CLASS = "macroserve.engine.vllm.scheduler.MacroserveScheduler"
CPU_WORKER_CLASS = "macroserve.engine.vllm.cpu_worker.CpuWorker"
ADAPTER_WORKER_CLASS = "macroserve.engine.vllm.cpu_worker.AdapterWorker"
ADAPTER_WORKERS_CLASS = "macroserve.engine.vllm.cpu_worker.AdapterWorkers"
IMAGE_CACHE_GB = 0.25
"""Cache of processed images in an ingress, for a chat's next turn, GiB."""
HYBRID_WORKER_CLASS = "macroserve.engine.vllm.hybrid.worker.HybridWorker"


class ServerArgs(AsyncEngineArgs):
    """Arguments whose defaults are those of ``vllm serve``: without its usage context, vLLM gives
    every GPU the limits of a batch of a small one."""

    def create_engine_config(
        self, usage_context: UsageContext | None = None, headless: bool = False
    ) -> VllmConfig:
        return super().create_engine_config(UsageContext.OPENAI_API_SERVER, headless)


def frontend_args(settings: EngineSettings) -> dict[str, Any]:
    """Return the arguments on which ingress and instance must agree."""
    return {
        "model": settings.model,
        "served_model_name": [settings.served_name],
        "max_model_len": settings.max_model_len,
        "dtype": settings.dtype,
        # The engine must recognize the end of the reasoning, after which a grammar applies.
        "reasoning_parser": settings.api.get("reasoning_parser") or "",
        "enable_lora": bool(settings.adapters),
        # A hash that is available in every environment.
        "mm_hasher_algorithm": "sha256",
        **_of_their_classes(settings.args),
    }


def _of_their_classes(args: dict[str, Any]) -> dict[str, Any]:
    """Convert mappings to vLLM's classes, as its command line does; ``AsyncEngineArgs`` converts
    only some. Raises ValueError for values that a class does not accept."""
    types = {field.name: field.type for field in fields(AsyncEngineArgs)}

    def typed(name: str, value: Any) -> Any:
        kinds = (types[name], *get_args(types[name]))
        found = [kind for kind in kinds if isinstance(kind, type) and is_dataclass(kind)]
        if not found or not isinstance(value, dict):
            return value
        return TypeAdapter(found[0]).validate_python(value)

    return {name: typed(name, value) for name, value in args.items()}


def engine_args(settings: EngineSettings, pool: Pool, status_path: str | None) -> AsyncEngineArgs:
    """Return the arguments of one instance's engine. Raises ValueError for settings that the
    adapter cannot serve."""
    _check_drafter(settings.args.get("speculative_config") or {})
    on_cpu = current_platform.is_cpu()
    return ServerArgs(
        **{
            **_sizes(settings, on_cpu),
            "tensor_parallel_size": settings.tensor_parallel,
            "pipeline_parallel_size": settings.pipeline_parallel,
            "worker_cls": _worker_class(settings, on_cpu),
            "enforce_eager": on_cpu,
            "enable_prefix_caching": settings.must_share_prefixes,
            **_adapter_limits(settings),
            # vLLM binds the processes that it starts, not this one.
            **({"distributed_executor_backend": "mp"} if settings.args.get("numa_bind") else {}),
            # Ingresses process images and always send them whole.
            "mm_processor_cache_gb": 0,
            **frontend_args(settings),
        },
        scheduler_cls=SCHEDULER_CLASS,
        additional_config={
            OPTIONS_KEY: {
                "strategy": settings.strategy,
                "ordering": settings.ordering,
                "pool": pool.value,
                "slo": asdict(settings.slo),
                "drop_late": settings.drop_late,
                "max_late_wait_s": settings.max_late_wait_s,
                "tuning": asdict(settings.tuning),
                "status_path": status_path,
            }
        },
    )


def _sizes(settings: EngineSettings, on_cpu: bool) -> dict[str, float | None]:
    """Return the sizes of the cache and of a batch; None means vLLM's choice."""
    sizes: Any = settings.small if on_cpu else settings
    return {
        "block_size": sizes.block_size,
        "max_num_seqs": sizes.max_num_seqs,
        "max_num_batched_tokens": sizes.max_batch_tokens,
        "kv_cache_memory_bytes": settings.small_cache_bytes if on_cpu else settings.kv_cache_bytes,
        # For all ranks together, GiB.
        "kv_offloading_size": settings.host_cache_bytes and settings.host_cache_bytes / GIB,
    }


def _worker_class(settings: EngineSettings, on_cpu: bool) -> str:
    if not on_cpu:
        return "auto"
    if settings.tensor_parallel * settings.pipeline_parallel > 1:
        return ADAPTER_WORKERS_CLASS if settings.adapters else CPU_WORKER_CLASS
    return ADAPTER_WORKER_CLASS if settings.adapters else "auto"


def check_host_cache(args: AsyncEngineArgs) -> None:
    """Raise ValueError for a host cache without a GPU."""
    if args.kv_offloading_size and not current_platform.is_cuda_alike():
        raise ValueError(
            "spec.engine.hostCacheMemory must be left out on a machine without GPUs, where vLLM's "
            "KV cache is already in host memory"
        )


def check_parallel(args: AsyncEngineArgs) -> None:
    """Raise ValueError for more workers than devices, and more stages than layers."""
    num_stages = args.pipeline_parallel_size
    if current_platform.is_cuda_alike():
        check_devices(args.tensor_parallel_size, num_stages, torch.cuda.device_count())
    if num_stages > 1:
        check_layers(num_stages, args.create_model_config().get_total_num_hidden_layers())


def _adapter_limits(settings: EngineSettings) -> dict[str, Any]:
    """Return limits that allow all adapters in one batch. Adapters on the hub are downloaded.
    Raises ValueError for an adapter that cannot be read."""
    ranks = [_rank(name, source) for name, source in settings.adapters.items()]
    if not ranks:
        return {}
    return {
        "max_loras": len(ranks),
        "max_cpu_loras": max(len(ranks), settings.args.get("max_loras", 1)),
        "max_lora_rank": min(rank for rank in MAX_RANKS if rank >= max(ranks)),
    }


def _rank(name: str, source: str) -> int:
    from vllm.lora.utils import get_adapter_absolute_path

    try:
        return rank_of(Path(get_adapter_absolute_path(source)))
    except (OSError, ValueError) as error:
        raise ValueError(f"adapter {name} is {source}, but {error}") from error


def stock_args(settings: EngineSettings) -> AsyncEngineArgs:
    """Return the arguments of the same engine with vLLM's scheduler."""
    args = engine_args(settings, Pool.LP, None)
    return replace(args, scheduler_cls=None, additional_config={})


def _check_drafter(speculation: dict[str, Any]) -> None:
    """Raise ValueError for a drafter that needs a missing package."""
    names = {speculation.get("method"), speculation.get("model")}
    if names & {"ngram", "[ngram]"} and find_spec("numba") is None:
        raise ValueError(
            "engine.args.speculativeConfig with method ngram needs the Python package numba, which "
            "is not installed here; name a draft model, or use an image with numba"
        )


def with_hybrid_cache(args: AsyncEngineArgs) -> AsyncEngineArgs:
    """Return the arguments of an engine with the hybrid cache. Raises ValueError for asynchronous
    scheduling.

    The engine runs eagerly, as CUDA graphs do not allow the hooks for each layer's input. On a GPU
    it uses an attention backend that the cache supports, unless one is configured.
    """
    if args.async_scheduling:
        raise ValueError(
            "engine.args.asyncScheduling excludes engine.hybridCache: the requests with hidden "
            "states are chosen after the previous step has ended"
        )
    # The V2 model runner does not pass the requests of a batch's rows to attention.
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    attention = args.attention_config
    if not (current_platform.is_cpu() or args.attention_backend or attention.backend):
        attention = replace(attention, backend=AttentionBackendEnum.FLASH_ATTN)
    return replace(
        args,
        worker_cls=HYBRID_WORKER_CLASS,
        enforce_eager=True,
        attention_config=attention,
        # A preemption may change which requests keep hidden states.
        async_scheduling=False,
    )


def frontend_config(settings: EngineSettings) -> VllmConfig:
    """Return the configuration of a frontend without an engine."""
    with naming_quantization(settings), _models_inspected_here():
        args = {"mm_processor_cache_gb": IMAGE_CACHE_GB, **frontend_args(settings)}
        # As with several frontends, no image may be omitted as already sent.
        return ServerArgs(**args, _api_process_count=2).create_engine_config()


@contextmanager
def _models_inspected_here() -> Iterator[None]:
    """Let vLLM inspect a model's class in this process. vLLM's subprocess, which keeps devices
    uninitialized here, takes ten CPU seconds, and a frontend uses no device."""
    elsewhere = registry._run_in_subprocess
    registry._run_in_subprocess = lambda inspect: inspect()
    try:
        yield
    finally:
        registry._run_in_subprocess = elsewhere
