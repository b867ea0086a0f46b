"""Settings of an engine, as plain data that can be sent to another process."""

from dataclasses import asdict, dataclass, field
from typing import Any

from macroserve.core.engine_sizes import SMALL, SMALL_CACHE_BYTES, EngineSizes
from macroserve.core.request import Slo
from macroserve.core.slo_class import SloClass
from macroserve.core.tuning import DEFAULT_TUNING, Tuning


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of one model on one instance."""

    model: str
    """A folder, or a name on the Hugging Face hub."""
    served_name: str
    max_model_len: int
    strategy: str
    slo: Slo
    slo_classes: tuple[SloClass, ...] = ()
    """Classes in addition to the default one, which has ``slo``; the ingress assigns requests."""
    takes_request_targets: bool = False
    """Whether requests may set latency targets."""
    ordering: str = "Auto"
    """Order of the waiting requests, as ``spec.scheduling.ordering``."""
    drop_late: bool = False
    tuning: Tuning = DEFAULT_TUNING
    """Parameters from the strategy's paper, as ``spec.scheduling.tuning``."""
    max_late_wait_s: float | None = None
    """See ``InstanceConfig``."""
    max_queue_wait_s: float = 300.0
    """Longest predicted wait; ingresses refuse requests that would wait longer."""
    emulated: bool = False
    rehearse: str | None = None
    """Device that the engine rehearses, a name in ``core.accelerators.PEAKS``."""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    hybrid_cache: str = "Auto"
    """Auto, On or Off, as ``spec.engine.hybridCache``."""
    prefix_caching: str = "Auto"
    """Auto, On or Off, as ``spec.engine.prefixCaching``."""
    dtype: str = "auto"
    # None means vLLM's choice for the device, or ``small`` on a CPU.
    block_size: int | None = None
    kv_cache_bytes: int | None = None
    """Size of the block pool."""
    host_cache_bytes: int | None = None
    """Host memory for blocks that do not fit in the pool."""
    max_num_seqs: int | None = None
    max_batch_tokens: int | None = None
    adapters: dict[str, str] = field(default_factory=dict)
    """Folder or hub name of each LoRA adapter, by its name in requests."""
    args: dict[str, Any] = field(default_factory=dict)
    """Further vLLM engine arguments by their Python names."""
    api: dict[str, Any] = field(default_factory=dict)
    """Options of vLLM's server by their Python names."""

    @property
    def must_share_prefixes(self) -> bool:
        """Return whether prefix caching is required; the host cache only holds shared blocks."""
        return self.prefix_caching == "On" or self.host_cache_bytes is not None

    @property
    def small(self) -> EngineSizes:
        """Return the sizes for a CPU or an emulated engine."""
        return SMALL.given(self.block_size, self.max_num_seqs, self.max_batch_tokens)

    @property
    def small_cache_bytes(self) -> int:
        """Return the size of the block pool for a CPU or an emulated engine."""
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
