"""The emulated engine's prefix cache."""

from collections.abc import Iterable

from macroserve.core.block_pool import BlockPool, HashChain


class PrefixCache:
    """Hashes of requests' tokens for a block pool, as in vLLM.

    Attributes:
        record: the pool, which the scheduler reads.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.record = BlockPool(num_blocks, block_size)
        self._block_size = block_size
        self._chains: dict[str, HashChain] = {}

    def add(self, request_id: str, token_ids: Iterable[int], salt: str | None = None) -> None:
        """Add a request with its prompt; requests with different salts share nothing."""
        self._chains[request_id] = chain = HashChain(self._block_size, salt or "")
        token_ids = list(token_ids)
        self.record.add(request_id, len(token_ids), chain.extend(token_ids))

    def append(self, request_id: str, token_id: int) -> None:
        """Add a generated token."""
        self.record.append(request_id, self._chains[request_id].extend([token_id]))

    def remove(self, request_id: str) -> None:
        """Remove a request; its computed blocks can still be found."""
        self.record.remove(request_id)
        del self._chains[request_id]
