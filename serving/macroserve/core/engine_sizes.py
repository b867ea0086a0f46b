"""The sizes of an engine that its manifest leaves open."""

from dataclasses import dataclass, replace

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class EngineSizes:
    block_size: int
    """Tokens per block of the KV cache."""
    max_num_seqs: int
    """Maximum sequences of one batch."""
    max_batch_tokens: int
    """Maximum tokens of one batch."""

    def given(
        self, block_size: int | None, max_num_seqs: int | None, max_batch_tokens: int | None
    ) -> "EngineSizes":
        """Return the sizes with those that are given. A batch has room for one token of each
        sequence."""
        num_seqs = max_num_seqs or min(self.max_num_seqs, max_batch_tokens or self.max_num_seqs)
        return replace(
            self,
            block_size=block_size or self.block_size,
            max_num_seqs=num_seqs,
            max_batch_tokens=max_batch_tokens or max(self.max_batch_tokens, num_seqs),
        )


SMALL = EngineSizes(32, 64, 2048)
"""The sizes of engines on CPUs, whose cores servers need as well, and of emulated engines."""
SMALL_CACHE_BYTES = 256 << 20
"""The KV cache of these engines."""


def sizes_on(device: str, memory_bytes: float) -> EngineSizes:
    """Return the sizes that vLLM 0.32 chooses for its server on a GPU
    (``EngineArgs.get_batch_defaults``).

    device: its name, such as ``A100-80GB``.
    """
    if memory_bytes >= 160 * GIB:
        return EngineSizes(16, 1024, 16384)
    if memory_bytes >= 70 * GIB and not device.startswith("A100"):
        return EngineSizes(16, 1024, 8192)
    return EngineSizes(16, 256, 2048)
