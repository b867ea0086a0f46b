"""The tuning has the numbers that the papers leave to whoever runs their systems."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """A strategy reads those of these numbers that ``Strategy.tunables`` names; others have no
    effect. Raises ValueError for a number out of its bounds."""

    chunk_tokens: int = 512
    """Tokens of a batch with chunks: Sarathi's, as in its paper and in those that compare with it,
    and EconoServe's target forward size (section 3.2)."""
    late_value: float = 0.0
    """Value of a request that has missed its targets, relative to one that has not (Apt-Serve,
    section 6.6: 0.4 spares the tail at the expense of attainment)."""
    kv_padding: float = 0.15
    """Share added to a predicted length when KV is reserved (EconoServe, section 3.2: 10-20 %)."""
    kv_reserve: float = 0.03
    """Share of all blocks left to prompts and to responses that outrun their reservation
    (EconoServe, section 3.2: 2-4 %)."""
    lending_buffer: float = 0.15
    """Share of its length by which a borrower has to end before its lender needs the memory
    (EconoServe, section 4.1)."""
    offload_threshold_s: float = 0.1
    """Offload while this many seconds more than a full batch are left until a deadline (Ascendra,
    section 5.3): time for the way to the other instance."""
    lp_batch_size: int = 128
    """Maximum sequences of a low-priority instance (Ascendra, section 6.2)."""
    hp_free_share: float = 0.1
    """Largest share of the KV blocks that an HP instance keeps free for responses under way
    (Ascendra, section 8.5)."""

    def __post_init__(self) -> None:
        for name in ("chunk_tokens", "lp_batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("late_value", "kv_padding", "lending_buffer"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name)}")
        for name in ("kv_reserve", "hp_free_share"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be from 0 to below 1, got {getattr(self, name)}")
        if self.offload_threshold_s < 0:
            raise ValueError(f"offload_threshold_s must be >= 0, got {self.offload_threshold_s}")

    def over_stages(self, num_stages: int) -> "Tuning":
        """Return the tuning of a round of batches, one for each stage of a pipeline."""
        return replace(self, chunk_tokens=self.chunk_tokens * num_stages)


DEFAULT_TUNING = Tuning()
