"""A simulated instance's prefix cache knows prompts by the block ids of their trace."""

from macroserve.core.block_pool import BlockPool
from macroserve.workload.arrivals import BLOCK_TOKENS


class PrefixCache:
    """The cache follows the prompts alone: no trace tells which prompts repeat a response.

    Attributes:
        record: the pool, which the scheduler reads.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.record = BlockPool(num_blocks, block_size)
        self._block_size = block_size

    def add(self, request_id: str, num_tokens: int, block_ids: tuple[int, ...]) -> None:
        self.record.add(request_id, num_tokens, self._hashes(num_tokens, block_ids))

    def _hashes(self, num_tokens: int, block_ids: tuple[int, ...]) -> list[int]:
        """Return the hashes of the blocks that lie in the prompt and in one block of the trace."""
        hashes: list[int] = []
        so_far = 0
        for index, block_id in enumerate(block_ids):
            so_far = hash((so_far, block_id))
            start, end = index * BLOCK_TOKENS, min(num_tokens, (index + 1) * BLOCK_TOKENS)
            num_blocks = (end - start) // self._block_size
            hashes += [hash((so_far, number)) for number in range(num_blocks)]
        return hashes
