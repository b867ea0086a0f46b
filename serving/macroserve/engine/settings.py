"""The settings hold plain data from which an instance, maybe in another process, builds its
engine."""

from dataclasses import asdict, dataclass, field
from typing import Any

from macroserve.core.engine_sizes import SMALL, SMALL_CACHE_BYTES, EngineSizes
from macroserve.core.request import Slo
from macroserve.core.slo_class import SloClass
from macroserve.core.tuning import DEFAULT_TUNING, Tuning


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The settings describe one model on one instance."""

    model: str
    """A Hugging Face folder or name."""
    served_name: str
    max_model_len: int
    strategy: str
    slo: Slo
    slo_classes: tuple[SloClass, ...] = ()
    """Classes besides the one with the targets of ``slo``; the ingress tells which a request
    belongs to."""
    takes_request_targets: bool = False
    """The flag lets a request bring latency targets of its own."""
    ordering: str = "Auto"
    """Order of the waiting requests, as ``spec.scheduling.ordering``."""
    drop_late: bool = False
    tuning: Tuning = DEFAULT_TUNING
    """Numbers of the strategy's paper, as ``spec.scheduling.tuning``."""
    overdue_after_s: float | None = None
    """Time after which a late request is overdue, seconds, as ``InstanceConfig``."""
    max_queue_wait_s: float = 300.0
    """Longest predicted wait, seconds; ingresses refuse requests that would wait longer."""
    emulated: bool = False
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    hybrid_cache: str = "Auto"
    """Auto, On or Off, as ``spec.engine.hybridCache``."""
    prefix_caching: str = "Auto"
    """Auto, On or Off, as ``spec.engine.prefixCaching``."""
    dtype: str = "auto"
    # What is None is vLLM's choice for the device (``small`` on a CPU).
    block_size: int | None = None
    kv_cache_bytes: int | None = None
    """Size of the block pool, bytes."""
    host_cache_bytes: int | None = None
    """Memory of the host for blocks that the pool has no room for, bytes."""
    max_num_seqs: int | None = None
    max_batch_tokens: int | None = None
    adapters: dict[str, str] = field(default_factory=dict)
    """Folder, or name on the Hugging Face hub, of each LoRA adapter, by the name in requests."""
    args: dict[str, Any] = field(default_factory=dict)
    """Further vLLM engine arguments by their Python names."""
    api: dict[str, Any] = field(default_factory=dict)
    """Options of vLLM's server by their Python names."""

    @property
    def must_share_prefixes(self) -> bool:
        """Return whether prompts have to share blocks; the memory of the host keeps such ones
        alone."""
        return self.prefix_caching == "On" or self.host_cache_bytes is not None

    @property
    def small(self) -> EngineSizes:
        """Return the sizes on a CPU, and of an emulated engine."""
        return SMALL.given(self.block_size, self.max_num_seqs, self.max_batch_tokens)

    @property
    def small_cache_bytes(self) -> int:
        """Return the size of the block pool on a CPU, and of an emulated engine, bytes."""
        return self.kv_cache_bytes or SMALL_CACHE_BYTES

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "EngineSettings":
        classes = tuple(map(SloClass.from_dict, values.get("slo_classes", ())))
        own = {
            "slo": Slo(**values["slo"]),
            "slo_classes": classes,
            "tuning": Tuning(**values.get("tuning", {})),
        }
        return cls(**{**values, **own})
