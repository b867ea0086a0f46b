"""What an instance scheduler is built with."""

from dataclasses import dataclass

from macroserve.core.request import Slo
from macroserve.core.status import Pool
from macroserve.core.strategy import Ordering, Strategy

OVERDUE_TTFTS = 2.0
"""A request that waited this many TTFT targets is prefilled whether slack pays for it or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceConfig:
    """One instance's policies and limits; raises ValueError where they contradict each other.

    slo: the instance's own targets, for bounds on waiting; each request brings its own as well.
    num_blocks, block_size: the KV cache, in blocks of ``block_size`` tokens.
    max_num_seqs: sequences that hold KV at a time. max_batch_tokens: tokens of one batch.
    max_model_len: prompt and response together, in tokens.
    drop_late: hand back waiting requests whose TTFT target is past (Ascendra, section 6.3).
    chunk_tokens: Sarathi's token budget for one batch.
    offload_threshold_s: offload while this much more than a full batch is left until a deadline
        (Ascendra, section 5.3): time for the way to the other instance.
    hidden_states_per_block: tokens whose hidden states a block holds (Apt-Serve, section 3.1);
        None where the engine keeps keys and values alone.
    late_value: what requests count that have missed their targets, against one that has not
        (Apt-Serve, section 6.6: 0.4 spares the tail at the expense of attainment).
    """

    strategy: Strategy
    pool: Pool
    slo: Slo
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_batch_tokens: int
    max_model_len: int
    drop_late: bool = False
    chunk_tokens: int = 512
    offload_threshold_s: float = 0.1
    hidden_states_per_block: int | None = None
    late_value: float = 0.0

    def __post_init__(self) -> None:
        sizes = ("num_blocks", "block_size", "max_num_seqs", "max_model_len", "chunk_tokens")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_batch_tokens < self.max_num_seqs:
            raise ValueError(
                "max_batch_tokens must leave one token for each sequence: got "
                f"{self.max_batch_tokens} tokens for {self.max_num_seqs} sequences"
            )
        if self.hidden_states_per_block is not None and self.hidden_states_per_block < 1:
            raise ValueError(
                f"hidden_states_per_block must be at least 1, got {self.hidden_states_per_block}"
            )
        if not 0 <= self.late_value <= 1:
            raise ValueError(f"late_value must be from 0 to 1, got {self.late_value}")
        if self.offload_threshold_s < 0:
            raise ValueError(f"offload_threshold_s must be >= 0, got {self.offload_threshold_s}")
        if self.strategy.triage and self.strategy.ordering is not Ordering.EDF:
            raise ValueError(
                f"strategy {self.strategy.name!r} triages, which needs the order of deadlines (EDF)"
            )
