"""Kernel times of a device: rooflines with efficiencies fitted to measured kernels.

The measurements are those of aiconfigurator (ai-dynamo, Apache-2.0): kernels of vLLM 0.14 on an
A100-SXM4 80GB and an H100 SXM, bfloat16. The laboratory's ``fit.py`` repeats the fit and prints the
errors on held-out rows. A kernel's time is a norm of its times to move data and to compute, whose
exponent (sharpness) is infinite if they overlap entirely and 1 if they follow each other.
"""

from dataclasses import dataclass
from math import ceil, exp, log2

from macroserve.core.shapes import DeviceShape

ELEMENT_BYTES = 2
"""Bytes of an element in bfloat16 and float16."""

TILE = 64
"""Rows and columns of the smallest output tile of a matrix product."""

TILE_DEPTH = 512
"""Products summed per tile before it is worth splitting."""

ROW_BLOCK = 128
"""Minimum tokens of the KV cache that a decode kernel reads per sequence and KV head."""

QUERY_BLOCK = 128
"""Minimum tokens of a prompt that an attention kernel computes."""


@dataclass(frozen=True, slots=True)
class Roof(DeviceShape):
    """A device's dense peak and bandwidth, and the multiprocessors that share them."""

    num_multiprocessors: int


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """Kernel that multiplies two matrices."""

    compute: float
    """Share of the peak that large products reach."""
    memory: float
    """Share of the bandwidth that large products reach."""
    launch_s: float
    """Minimum time of a product, seconds."""
    sharpness: float
    """Exponent of the norm of the times to compute and to move."""
    spread: float
    """Tiles per multiprocessor that use all of the bandwidth."""

    def seconds(self, m: float, n: int, k: int, roof: Roof) -> float:
        """Return the seconds of the product of an m x k and a k x n matrix."""
        compute_s = 2 * m * n * k / (self.compute * roof.flops_per_s)
        moved = ELEMENT_BYTES * (m * k + n * k + m * n)
        tiles = max(1, m / TILE) * max(1, n / TILE) * max(1, k / TILE_DEPTH)
        used = 1 - exp(-tiles / (self.spread * roof.num_multiprocessors))
        memory_s = moved / (self.memory * roof.bytes_per_s * used)
        return self.launch_s + _norm(compute_s, memory_s, self.sharpness)


@dataclass(frozen=True, slots=True)
class PromptAttention:
    """Kernel for causal attention of prompts, with the fields of ``MatrixProduct``; its tiles are
    blocks of queries."""

    compute: float
    memory: float
    launch_s: float
    sharpness: float
    spread: float

    def seconds(
        self, num_tokens: int, before: int, heads: int, kv_heads: int, head_dim: int, roof: Roof
    ) -> float:
        """Return the seconds for ``num_tokens`` of a prompt after its first ``before`` tokens."""
        queries = max(num_tokens, QUERY_BLOCK)
        pairs = heads * num_tokens * (before + (queries + QUERY_BLOCK) / 2)
        tiles = heads * max(1, num_tokens / QUERY_BLOCK)
        used = 1 - exp(-tiles / (self.spread * roof.num_multiprocessors))
        compute_s = 4 * head_dim * pairs / (self.compute * roof.flops_per_s * used)
        moved = 2 * head_dim * (heads * num_tokens + kv_heads * (before + num_tokens))
        memory_s = ELEMENT_BYTES * moved / (self.memory * roof.bytes_per_s)
        return self.launch_s + _norm(compute_s, memory_s, self.sharpness)


@dataclass(frozen=True, slots=True)
class DecodeAttention:
    """Kernel for attention of one new token per sequence to its context, bound by reading the
    cache."""

    memory: float
    launch_s: float
    join_s: float
    """Seconds per doubling of the context, which is divided between multiprocessors."""
    serial_s: float
    """Seconds per block without grouped queries, when one multiprocessor reads a whole context."""

    def seconds(
        self,
        num_sequences: int,
        blocks: float,
        heads: int,
        kv_heads: int,
        head_dim: int,
        roof: Roof,
    ) -> float:
        """Return the seconds for one new token of each sequence, whose context has on average
        ``blocks`` of ``ROW_BLOCK`` tokens."""
        moved = kv_heads * blocks * ROW_BLOCK + heads
        moved_bytes = 2 * ELEMENT_BYTES * head_dim * num_sequences * moved
        memory_s = moved_bytes / (self.memory * roof.bytes_per_s)
        if heads > kv_heads:
            return self.launch_s + self.join_s * log2(blocks) + memory_s
        waves = ceil(num_sequences * heads / roof.num_multiprocessors)
        return self.launch_s + max(memory_s, self.serial_s * blocks * waves)


def row_blocks(num_tokens: float) -> float:
    """Return the mean blocks of a context, which ends anywhere in its last block."""
    return max(1.0, num_tokens / ROW_BLOCK + 0.5)


@dataclass(frozen=True, slots=True)
class Kernels:
    product: MatrixProduct
    prompt_attention: PromptAttention
    decode_attention: DecodeAttention


def _norm(a: float, b: float, sharpness: float) -> float:
    return (a**sharpness + b**sharpness) ** (1 / sharpness)
