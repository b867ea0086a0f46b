"""Default batch and block sizes of an engine, where its manifest sets none."""

from dataclasses import dataclass, replace

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class EngineSizes:
    block_size: int
    """Tokens per block of the KV cache."""
    max_num_seqs: int
    """Maximum sequences per batch."""
    max_batch_tokens: int

    def given(
        self, block_size: int | None, max_num_seqs: int | None, max_batch_tokens: int | None
    ) -> "EngineSizes":
        """Return the sizes with these overrides; a batch holds at least a token per sequence."""
        num_seqs = max_num_seqs or min(self.max_num_seqs, max_batch_tokens or self.max_num_seqs)
        return replace(
            self,
            block_size=block_size or self.block_size,
            max_num_seqs=num_seqs,
            max_batch_tokens=max_batch_tokens or max(self.max_batch_tokens, num_seqs),
        )


SMALL = EngineSizes(32, 64, 2048)
"""Sizes for engines on CPUs, which share their cores with servers, and for emulated engines."""
SMALL_CACHE_BYTES = 256 << 20
"""KV cache of these engines."""


def sizes_on(device: str, memory_bytes: float) -> EngineSizes:
    """Return the sizes that vLLM 0.32's server chooses (``EngineArgs.get_batch_defaults``) on a
    GPU such as ``A100-80GB``."""
    if memory_bytes >= 160 * GIB:
        return EngineSizes(16, 1024, 16384)
    if memory_bytes >= 70 * GIB and not device.startswith("A100"):
        return EngineSizes(16, 1024, 8192)
    return EngineSizes(16, 256, 2048)
