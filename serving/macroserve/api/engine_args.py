"""``spec.engine.args``: the vLLM engine arguments that Macroserve does not decide."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainValidator
from pydantic.alias_generators import to_camel, to_snake

from macroserve.api import api_options
from macroserve.api.json_value import json_value
from macroserve.api.validation_errors import must_be, nearest
from macroserve.api.vllm_names import ENGINE_ARGS, QUANTIZATION_METHODS

DECIDED_BY = {
    "model": "spec.model.source",
    "served_model_name": "spec.model.servedName",
    "enable_lora": "spec.model.adapters",
    "max_model_len": "spec.model.maxModelLen",
    "tensor_parallel_size": "spec.engine.tensorParallel",
    "pipeline_parallel_size": "spec.engine.pipelineParallel",
    "distributed_executor_backend": "spec.engine.type",
    "dtype": "spec.engine.dtype",
    "block_size": "spec.engine.blockSize",
    "kv_cache_memory_bytes": "spec.engine.kvCacheMemory",
    "num_gpu_blocks_override": "spec.engine.kvCacheMemory",
    "kv_offloading_size": "spec.engine.hostCacheMemory",
    "kv_offloading_backend": "spec.engine.hostCacheMemory",
    "max_num_seqs": "spec.engine.maxNumSeqs",
    "max_num_batched_tokens": "spec.engine.maxBatchTokens",
    "enable_prefix_caching": "spec.engine.prefixCaching",
    "worker_cls": "spec.engine.hybridCache",
    "worker_extension_cls": "spec.engine.hybridCache",
    "scheduler_cls": "spec.scheduling.strategy",
    "scheduling_policy": "spec.scheduling.strategy",
    "spec_method": "spec.engine.args.speculativeConfig",
    "spec_model": "spec.engine.args.speculativeConfig",
    "spec_tokens": "spec.engine.args.speculativeConfig",
    "enable_chunked_prefill": "spec.scheduling.strategy",
    "stream_interval": "spec.ingress.streamInterval",
}
"""vLLM engine arguments that a manifest cannot set, with the field that decides each."""

UNSERVED = {
    **dict.fromkeys(
        ("diffusion_config",), "the scheduler gives each running request one token per step"
    ),
    **dict.fromkeys(("default_mm_loras",), "a request selects its adapter with its model name"),
    **dict.fromkeys(
        ("kv_transfer_config", "ec_transfer_config"),
        "the scheduler owns all KV blocks",
    ),
    **dict.fromkeys(
        [name for name in ENGINE_ARGS if name.startswith("data_parallel_")],
        "an instance has one engine, and spec.instances is the number of instances",
    ),
    **dict.fromkeys(
        (
            "max_num_scheduled_tokens",
            "max_num_active_seqs",
            "max_num_queued_reqs",
            "max_num_queued_tokens",
            "long_prefill_token_threshold",
            "long_prefill_token_threshold_adaptive",
            "prefill_schedule_interval",
            "scheduler_reserve_full_isl",
            "watermark",
        ),
        "the scheduler decides each batch",
    ),
    "disable_chunked_mm_input": "the scheduler may end a batch within an image",
    **dict.fromkeys(("additional_config",), "it contains the scheduler's own settings"),
    **dict.fromkeys(("skip_tokenizer_init",), "the ingress needs the tokenizer"),
    **dict.fromkeys(("runner", "convert", "pooler_config"), "only text generation is served"),
    **dict.fromkeys(
        ("reasoning_parser_plugin", "io_processor_plugin"), "an ingress loads no third-party code"
    ),
    **dict.fromkeys(("enable_log_requests",), "requests are not logged"),
    **dict.fromkeys(("disable_log_stats",), "metrics need them"),
}
"""Unsupported vLLM engine arguments, with the reason."""


_API_FIELDS = frozenset(api_options.ApiOptions.model_fields)


def _arg_name(value: object) -> str:
    """Return the name in snake_case; ``maxLogprobs`` and ``max_logprobs`` are both accepted."""
    if not isinstance(value, str) or not re.fullmatch("[a-z][A-Za-z0-9_]*", value):
        raise must_be("named like a vLLM engine argument, in camelCase or snake_case")
    name = to_snake(value)
    if name in _API_FIELDS:
        raise must_be(f"given as spec.api.{to_camel(name)}")
    if field := DECIDED_BY.get(name) or api_options.DECIDED.get(name):
        raise must_be(f"left out, because {field} sets it")
    if why := UNSERVED.get(name) or api_options.FIXED.get(name):
        raise must_be(f"left out, because {why}")
    if name not in ENGINE_ARGS:
        known = ENGINE_ARGS if "_" in value else map(to_camel, ENGINE_ARGS)
        raise must_be(f"an engine argument of vLLM{nearest(value, known)}")
    return name


def _of_its_kind(args: dict[str, Any]) -> dict[str, Any]:
    for name, value in args.items():
        kind = {dict: "mapping", list: "list"}.get(type(value), "scalar")
        if kind not in (kinds := ENGINE_ARGS[name]).split(" or "):
            raise must_be(f"a mapping whose {name} is a {kinds}")
    method = args.get("quantization")
    if method is not None and method not in QUANTIZATION_METHODS:
        known = nearest(str(method), QUANTIZATION_METHODS)
        raise must_be(f"a mapping whose quantization is a method of vLLM{known}")
    return args


def _named_once(args: object) -> object:
    if isinstance(args, dict):
        names = [to_snake(name) for name in args if isinstance(name, str)]
        if twice := {name for name in names if names.count(name) > 1}:
            raise must_be(f"a mapping with {', '.join(sorted(twice))} only once")
    return args


EngineArgs = Annotated[
    dict[
        Annotated[str, PlainValidator(_arg_name)],
        Annotated[Any, PlainValidator(json_value)],
    ],
    BeforeValidator(_named_once),
    AfterValidator(_of_its_kind),
]
"""Values by snake_case name; manifests may use camelCase. Names inside a value are unchanged."""
