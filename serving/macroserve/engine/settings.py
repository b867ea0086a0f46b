"""What an instance needs to build its engine: plain data, so that it can go to another process."""

from dataclasses import asdict, dataclass, field
from typing import Any

from macroserve.core.request import Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One model on one instance.

    model: a Hugging Face folder or name. kv_cache_bytes: size of the block pool.
    max_queue_wait_s: ingresses refuse what cannot begin within it.
    hybrid_cache: Auto, On or Off, as ``spec.engine.hybridCache``.
    args: further vLLM engine arguments by their Python names. api: options of vLLM's server.
    """

    model: str
    served_name: str
    max_model_len: int
    strategy: str
    slo: Slo
    drop_late: bool = False
    max_queue_wait_s: float = 300.0
    emulated: bool = False
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    hybrid_cache: str = "Auto"
    dtype: str = "auto"
    block_size: int = 32
    kv_cache_bytes: int = 256 << 20
    max_num_seqs: int = 64
    max_batch_tokens: int = 2048
    args: dict[str, Any] = field(default_factory=dict)
    api: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "EngineSettings":
        return cls(**{**values, "slo": Slo(**values["slo"])})
