"""Requests in scattered pages of a pool, for tests of kernels."""

from dataclasses import dataclass

import torch

from macroserve.kernels.decodes import Decodes
from macroserve.kernels.pool import hidden_view, kv_view
from macroserve.kernels.projection import KvProjection

POSITIONS = 512

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Absolute errors of numbers near one that were rounded once or twice."""


@dataclass(frozen=True, slots=True)
class Heads:
    """A model's attention. hidden_size: by default that of multi-head attention."""

    num_kv_heads: int
    group: int
    size: int
    hidden: int | None = None

    @property
    def num(self) -> int:
        return self.num_kv_heads * self.group

    @property
    def hidden_size(self) -> int:
        return self.hidden or self.num * self.size


class Paged:
    """A pool filled with noise, and requests of ``seq_lens`` tokens in shuffled pages of it.

    decodes: every second request, so that changes to the others' pages are found.
    """

    def __init__(
        self,
        heads: Heads,
        dtype: torch.dtype,
        device: torch.device,
        block_size: int = 16,
        seq_lens: tuple[int, ...] = (1, 37, 200),
        *,
        rotary: bool = False,
        bias: bool = False,
    ) -> None:
        self._chance = torch.Generator().manual_seed(0)
        self._dtype, self._device = dtype, device
        self.heads, self.block_size = heads, block_size
        page_size = 2 * block_size * heads.num_kv_heads * heads.size
        tokens = min(block_size, page_size // heads.hidden_size)
        blocks = [-(-seq_len // tokens) for seq_len in seq_lens]
        self.pool = self.noise(sum(blocks) + 2, page_size)
        order = iter(torch.randperm(len(self.pool), generator=self._chance).tolist())
        table = torch.zeros(len(seq_lens), max(blocks), dtype=torch.int32)
        for row, num_blocks in enumerate(blocks):
            table[row, :num_blocks] = torch.tensor([next(order) for _ in range(num_blocks)])
        self.decodes = Decodes(
            block_table=table.to(device),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=device),
            requests=torch.arange(0, len(seq_lens), 2, device=device),
            max_seq_len=max(seq_lens[::2]),
        )
        self.query = self.noise(len(seq_lens), heads.num, heads.size)
        self.projection = self._projection(rotary, bias)

    @property
    def hidden(self) -> torch.Tensor:
        return hidden_view(self.pool, self.heads.hidden_size)

    @property
    def keys_and_values(self) -> tuple[torch.Tensor, torch.Tensor]:
        return kv_view(self.pool, self.block_size, self.heads.num_kv_heads, self.heads.size)

    @property
    def scale(self) -> float:
        return self.heads.size**-0.5

    def noise(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._chance).to(self._dtype).to(self._device)

    def slots(self, num: int, capacity: int) -> torch.Tensor:
        """Return distinct random slots in the pool."""
        found = torch.randperm(len(self.pool) * capacity, generator=self._chance)
        return found[:num].to(self._device)

    def _projection(self, rotary: bool, bias: bool) -> KvProjection:
        heads = self.heads
        size = heads.num_kv_heads * heads.size

        def weight() -> torch.Tensor:
            return self.noise(size, heads.hidden_size) / heads.hidden_size**0.5

        angles = torch.arange(POSITIONS)[:, None] * torch.rand(
            heads.size // 2, generator=self._chance
        )
        table = torch.cat((angles.cos(), angles.sin()), dim=1).to(self._dtype).to(self._device)
        return KvProjection(
            key=weight(),
            value=weight(),
            head_size=heads.size,
            key_bias=self.noise(size) if bias else None,
            value_bias=self.noise(size) if bias else None,
            rotary=table if rotary else None,
        )


MULTI_HEAD = Heads(4, 1, 64)
GROUPED = Heads(2, 4, 64)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHAPES = {
    "as small as can be": (Heads(1, 1, 64), 16, (1,)),
    "odd lengths": (MULTI_HEAD, 16, (1, 7, 129, 3, 33)),
    "a head that is no power of two": (Heads(2, 1, 80), 16, (50,)),
    "large heads": (Heads(1, 2, 256), 32, (70,)),
    "large blocks": (MULTI_HEAD, 128, (300, 1, 17)),
    "grouped queries": (GROUPED, 16, (130,)),
    "many heads": (Heads(72, 1, 64, hidden=128), 16, (33,)),
    "a hidden state wider than all heads": (Heads(2, 1, 64, hidden=320), 32, (40,)),
    "pages that hold no whole number of hidden states": (Heads(3, 1, 64, hidden=160), 16, (60,)),
}
"""Heads, block size and lengths."""
