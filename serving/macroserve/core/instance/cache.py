"""The cache's ledger: who holds how many blocks.

Pages are fungible, so a reservation is a count and nothing else. What is free and what is held
always add up to the pool.
"""


class BlockLedger:
    """``free``: blocks that nobody holds."""

    __slots__ = ("_held", "block_size", "free", "num_blocks")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free = num_blocks
        self._held: dict[str, int] = {}

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def held_by(self, request_id: str) -> int:
        return self._held.get(request_id, 0)

    def room(self, request_id: str) -> int:
        """How many tokens its blocks hold."""
        return self.held_by(request_id) * self.block_size

    def grant(self, request_id: str, num_blocks: int) -> None:
        """Give that many more blocks."""
        assert 0 < num_blocks <= self.free, f"{num_blocks} blocks granted of {self.free} free"
        self.free -= num_blocks
        self._held[request_id] = self.held_by(request_id) + num_blocks

    def transfer(self, giver: str, taker: str, num_blocks: int) -> None:
        """That many blocks of one holder are another's now."""
        held = self.held_by(giver)
        assert 0 <= num_blocks <= held, f"{giver} holds {held} blocks and gives {num_blocks}"
        self._held[giver] = held - num_blocks
        self._held[taker] = self.held_by(taker) + num_blocks

    def release(self, request_id: str) -> None:
        self.free += self._held.pop(request_id, 0)

    def check(self) -> None:
        """Assert that no block was lost or made up."""
        assert self.free >= 0 and self.free + sum(self._held.values()) == self.num_blocks
