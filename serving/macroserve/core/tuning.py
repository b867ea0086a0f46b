"""Numbers that the papers leave to operators of their systems."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Tunable parameters; a strategy uses those in its ``Strategy.tunables`` and ignores the rest.

    Raises ValueError for a value out of bounds.
    """

    chunk_tokens: int = 512
    """Tokens per batch with chunked prefills: Sarathi's, as in its paper and in comparisons with
    it, and EconoServe's target forward size (section 3.2)."""
    late_value: float = 0.0
    """Relative value of a request that has missed its targets (Apt-Serve, section 6.6: 0.4 improves
    the tail at the expense of attainment)."""
    kv_padding: float = 0.15
    """Share added to a predicted length when KV is reserved (EconoServe, section 3.2: 10-20 %)."""
    kv_reserve: float = 0.03
    """Share of all blocks kept for prompts and responses that outgrow their reservation
    (EconoServe, section 3.2: 2-4 %)."""
    lending_buffer: float = 0.15
    """Share of a borrower's length as margin before its lender needs the memory (EconoServe,
    section 4.1)."""
    offload_threshold_s: float = 0.1
    """Seconds in excess of a full batch before a deadline at which requests are offloaded
    (Ascendra, section 5.3): time to reach the other instance."""
    lp_batch_size: int = 128
    """Maximum sequences of an LP instance (Ascendra, section 6.2)."""
    hp_free_share: float = 0.1
    """Maximum share of KV blocks that an HP instance keeps free for running responses (Ascendra,
    section 8.5)."""

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
        """Return the tuning for a round of batches, one per pipeline stage."""
        return replace(self, chunk_tokens=self.chunk_tokens * num_stages)


DEFAULT_TUNING = Tuning()
