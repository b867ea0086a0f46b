"""Further vLLM engine arguments in a manifest: any, but for those that Macroserve decides."""

import math
import re
from typing import Annotated

from pydantic import BeforeValidator, PlainValidator
from pydantic.alias_generators import to_snake

from macroserve.core.sentences import must_be

_DECIDED_BY = {
    "model": "spec.model.source",
    "served_model_name": "spec.model.servedName",
    "max_model_len": "spec.model.maxModelLen",
    "tensor_parallel_size": "spec.engine.tensorParallel",
    "pipeline_parallel_size": "spec.engine.pipelineParallel",
    "data_parallel_size": "spec.instances",
    "distributed_executor_backend": "spec.engine.type",
    "dtype": "spec.engine.dtype",
    "block_size": "spec.engine.blockSize",
    "kv_cache_memory_bytes": "spec.engine.kvCacheMemory",
    "gpu_memory_utilization": "spec.engine.kvCacheMemory",
    "num_gpu_blocks_override": "spec.engine.kvCacheMemory",
    "max_num_seqs": "spec.engine.maxNumSeqs",
    "max_num_batched_tokens": "spec.engine.maxBatchTokens",
    "worker_cls": "spec.engine.hybridCache",
    "worker_extension_cls": "spec.engine.hybridCache",
    "scheduler_cls": "spec.scheduling.strategy",
    "scheduling_policy": "spec.scheduling.strategy",
    "async_scheduling": "spec.scheduling.strategy",
    "enable_chunked_prefill": "spec.scheduling.strategy",
}
"""vLLM engine arguments that are not the user's to give, and the field that decides each."""


def _arg_name(value: object) -> str:
    """``maxLogprobs`` or ``max_logprobs`` as ``max_logprobs``."""
    if not isinstance(value, str) or not re.fullmatch("[a-z][A-Za-z0-9_]*", value):
        raise must_be("named like a vLLM engine argument, in camelCase or snake_case")
    name = to_snake(value)
    if name in _DECIDED_BY:
        raise must_be(f"left out, because {_DECIDED_BY[name]} decides it")
    return name


def _arg_value(value: object) -> object:
    is_finite = not isinstance(value, float) or math.isfinite(value)
    if not isinstance(value, str | int | float) or not is_finite:
        raise must_be("a string, a finite number, true or false")
    return value


def _named_once(args: object) -> object:
    if isinstance(args, dict):
        names = [to_snake(name) for name in args if isinstance(name, str)]
        if twice := {name for name in names if names.count(name) > 1}:
            raise must_be(f"a mapping that names {', '.join(sorted(twice))} only once")
    return args


EngineArgs = Annotated[
    dict[
        Annotated[str, PlainValidator(_arg_name)],
        Annotated[str | int | float | bool, PlainValidator(_arg_value)],
    ],
    BeforeValidator(_named_once),
]
"""Argument values by snake_case name; a manifest may also spell the names in camelCase."""
