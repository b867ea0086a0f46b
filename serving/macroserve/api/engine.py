"""``spec.engine``, without the checks that need vLLM."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationInfo,
    field_validator,
)

from macroserve.api.engine_args import EngineArgs
from macroserve.api.part import ManifestPart
from macroserve.api.units import parse_bytes
from macroserve.api.validation_errors import must_be
from macroserve.core.accelerators import PEAKS


def _on_or_off(value: object) -> object:
    # YAML 1.1 reads a bare On as true and Off as false.
    return {True: "On", False: "Off"}[value] if isinstance(value, bool) else value


def _bytes(value: object) -> int:
    if size := parse_bytes(str(value)):
        return size
    raise ValueError


def _auto_or_bytes(value: object) -> int | None:
    return None if value == "Auto" else _bytes(value)


DEVICES = f"one of {', '.join(PEAKS)}"
COUNT = "a whole number of at least 1"
Count = Annotated[int, Field(ge=1, description=COUNT)]
CacheSize = Annotated[
    int | None,
    PlainValidator(_auto_or_bytes),
    Field(description="Auto or a memory size above zero such as 256MiB or 2GiB"),
]
HostCacheSize = Annotated[
    int | None,
    PlainValidator(_bytes),
    Field(description="a memory size above zero such as 64GiB"),
]


def _device(name: str | None) -> str | None:
    if name is not None and name not in PEAKS:
        raise must_be(DEVICES)
    return name


class EngineSpec(ManifestPart):
    type: Literal["vLLM", "Emulated"] = Field(description="vLLM or Emulated")
    rehearse: Annotated[str | None, AfterValidator(_device)] = Field(
        default=None, description=DEVICES
    )
    """Device whose pace the engines keep on machines without it."""
    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    hybrid_cache: Annotated[Literal["Auto", "On", "Off"], BeforeValidator(_on_or_off)] = Field(
        default="Auto", description="Auto, On or Off"
    )
    prefix_caching: Annotated[Literal["Auto", "On", "Off"], BeforeValidator(_on_or_off)] = Field(
        default="Auto", description="Auto, On or Off"
    )
    """Whether prompts share the cache blocks of a common prefix."""
    dtype: Literal["auto", "float16", "bfloat16", "float32"] = Field(
        default="auto", description="auto, float16, bfloat16 or float32"
    )
    # None leaves the choice to the engine.
    block_size: Literal[16, 32, 64, 128] | None = Field(
        default=None, description="16, 32, 64 or 128 tokens"
    )
    kv_cache_bytes: CacheSize = Field(default=None, alias="kvCacheMemory")
    """Size of the KV cache, bytes."""
    host_cache_bytes: HostCacheSize = Field(default=None, alias="hostCacheMemory")
    """Host memory for KV that does not fit into the cache, bytes."""
    max_num_seqs: int | None = Field(default=None, ge=1, description=COUNT)
    max_batch_tokens: int | None = Field(default=None, ge=1, description=COUNT)
    args: EngineArgs = Field(default_factory=dict, description="a mapping of vLLM engine arguments")
    """Other vLLM engine arguments by snake_case name."""

    @field_validator("rehearse")
    @classmethod
    def _with_a_real_scheduler(cls, device: str | None, info: ValidationInfo) -> str | None:
        if device is not None and info.data.get("type") == "Emulated":
            raise must_be("left out, because an Emulated engine has its own pace")
        return device

    @field_validator("hybrid_cache")
    @classmethod
    def _in_one_stage(cls, setting: str, info: ValidationInfo) -> str:
        # A stage starts a batch before the previous one has ended.
        if setting == "On" and info.data.get("pipeline_parallel", 1) > 1:
            raise must_be("Auto or Off with spec.engine.pipelineParallel above 1")
        if setting == "On" and info.data.get("rehearse"):
            raise must_be("Auto or Off with spec.engine.rehearse")
        return setting

    @field_validator("prefix_caching")
    @classmethod
    def _without_hidden_states(cls, setting: str, info: ValidationInfo) -> str:
        # Blocks that hold hidden states are not shared.
        if setting == info.data.get("hybrid_cache") == "On":
            raise must_be("Auto or Off with spec.engine.hybridCache On")
        return setting

    @field_validator("host_cache_bytes")
    @classmethod
    def _beside_a_prefix_cache(cls, size: int, info: ValidationInfo) -> int:
        others = info.data
        if others.get("type") == "Emulated":
            raise must_be("left out, because an Emulated engine uses no host memory")
        if others.get("rehearse"):
            raise must_be("left out with spec.engine.rehearse")
        if others.get("pipeline_parallel", 1) > 1:
            raise must_be("left out with spec.engine.pipelineParallel above 1")
        # Blocks that hold hidden states are not shared.
        if others.get("hybrid_cache") == "On":
            raise must_be("left out with spec.engine.hybridCache On")
        if others.get("prefix_caching") == "Off":
            raise must_be("left out with spec.engine.prefixCaching Off")
        return size

    @field_validator("args")
    @classmethod
    def _with_one_size_of_the_cache(cls, args: dict[str, Any], info: ValidationInfo) -> Any:
        if "gpu_memory_utilization" in args and info.data.get("kv_cache_bytes") is not None:
            raise must_be(
                "a mapping without gpu_memory_utilization, because spec.engine.kvCacheMemory "
                "decides it unless that is Auto"
            )
        return args

    @field_validator("max_batch_tokens")
    @classmethod
    def _one_token_for_each_sequence(cls, tokens: int | None, info: ValidationInfo) -> int | None:
        num_seqs = info.data.get("max_num_seqs") or 1
        if tokens is not None and tokens < num_seqs:
            raise must_be(f"at least spec.engine.maxNumSeqs, which is {num_seqs}")
        return tokens

    @field_validator("args")
    @classmethod
    def _room_for_drafts(cls, args: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if not (speculation := args.get("speculative_config")):
            return args
        if info.data.get("type") == "Emulated":
            raise must_be(
                "a mapping without speculativeConfig, because an Emulated engine drafts no tokens"
            )
        if info.data.get("hybrid_cache") == "On":
            raise must_be("a mapping without speculativeConfig if spec.engine.hybridCache is On")
        if info.data.get("pipeline_parallel", 1) > 1:
            raise must_be(
                "a mapping without speculativeConfig if spec.engine.pipelineParallel is above 1"
            )
        num_seqs, tokens = info.data.get("max_num_seqs") or 1, info.data.get("max_batch_tokens")
        num_drafts = speculation.get("num_speculative_tokens", 0)
        if tokens and isinstance(num_drafts, int) and num_seqs * (1 + num_drafts) > tokens:
            raise must_be(
                f"such that spec.engine.maxBatchTokens, {tokens}, has room for "
                f"1 + num_speculative_tokens of each of the {num_seqs} spec.engine.maxNumSeqs"
            )
        return args
