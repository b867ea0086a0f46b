"""Configuration of an instance scheduler."""

from dataclasses import dataclass

from macroserve.core.request import Slo
from macroserve.core.scheduler.blocks import BlockGroup
from macroserve.core.status import Pool
from macroserve.core.strategy import Ordering, Strategy
from macroserve.core.tuning import DEFAULT_TUNING, Tuning

MIN_CHUNK_TOKENS = 16
"""Fewest prefill tokens that are worth adding to a step whose time is limited."""

OVERDUE_TTFTS = 2.0
"""TTFT targets after which a waiting request is prefilled even if no slack pays for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceConfig:
    """Policies and limits of one instance; contradictions raise ValueError."""

    strategy: Strategy
    pool: Pool
    slo: Slo
    """Targets of the default class, for limits not tied to one request."""
    num_blocks: int
    """Blocks of the KV cache."""
    block_size: int
    """Tokens per block."""
    block_groups: tuple[BlockGroup, ...] = ()
    """Groups of layers that draw blocks; empty for a single one that keeps all blocks."""
    max_num_seqs: int
    """Maximum sequences that hold KV at a time."""
    max_batch_tokens: int
    max_model_len: int
    """Maximum length of prompt and response together, tokens."""
    piece_tokens: int = 1
    """Prompts may be cut at multiples of this; ``max_model_len`` for an engine without chunks."""
    num_drafts: int = 0
    """Drafted tokens that a decode verifies in one step; 0 if the engine drafts none."""
    num_draft_slots: int = 0
    """KV slots that a request needs for drafted tokens."""
    drop_late: bool = False
    """Whether waiting requests past their TTFT target are handed back (Ascendra, section 6.3)."""
    max_late_wait_s: float | None = None
    """Longest wait of a late request under triage, seconds; None for ``MAX_LATE_TTFTS`` targets."""
    hidden_states_per_block: int | None = None
    """Tokens whose hidden states a block holds (Apt-Serve, section 3.1); None if the engine caches
    keys and values only."""
    max_adapters: int | None = None
    """Maximum adapters whose requests hold KV at a time; None without a limit."""
    tuning: Tuning = DEFAULT_TUNING

    @property
    def offloads(self) -> bool:
        """Return whether urgent requests leave for an HP instance (Ascendra, section 5.3)."""
        return self.strategy.offload and self.pool is not Pool.HP

    def __post_init__(self) -> None:
        sizes = ("num_blocks", "block_size", "max_num_seqs", "max_model_len")
        for name in (*sizes, "piece_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_batch_tokens < self.max_num_seqs * (1 + self.num_drafts):
            each = f"{1 + self.num_drafts} tokens" if self.num_drafts else "one token"
            raise ValueError(
                f"max_batch_tokens must leave {each} for each sequence: got "
                f"{self.max_batch_tokens} tokens for {self.max_num_seqs} sequences"
            )
        if self.hidden_states_per_block is not None and self.hidden_states_per_block < 1:
            raise ValueError(
                f"hidden_states_per_block must be at least 1, got {self.hidden_states_per_block}"
            )
        if self.max_adapters is not None and self.max_adapters < 1:
            raise ValueError(f"max_adapters must be at least 1, got {self.max_adapters}")
        if self.strategy.triage and self.strategy.ordering is not Ordering.EDF:
            raise ValueError(
                f"strategy {self.strategy.name!r} triages, which needs the order of deadlines (EDF)"
            )
