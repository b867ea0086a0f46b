"""Block pool with a prefix cache like vLLM's, for the emulated engine and the simulator.

Computed blocks stay findable after their requests end, until they are needed again: least recently
used first, and within a request from the end, so that the beginning of a prompt stays longest.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from macroserve.core.scheduler.blocks import MISS, Hit


class HashChain:
    """Hashes of a sequence's full blocks; each stands for all tokens up to its block.

    salt: sequences with different salts share nothing.
    """

    def __init__(self, block_size: int, salt: str = "") -> None:
        self._block_size = block_size
        self._last = hash(salt)
        self._rest: list[int] = []

    def extend(self, token_ids: Iterable[int]) -> list[int]:
        """Return the hashes of the blocks that these tokens complete."""
        self._rest += token_ids
        hashes: list[int] = []
        num_full = len(self._rest) - len(self._rest) % self._block_size
        for start in range(0, num_full, self._block_size):
            block = tuple(self._rest[start : start + self._block_size])
            self._last = hash((self._last, block))
            hashes.append(self._last)
        del self._rest[:num_full]
        return hashes


class _Request:
    __slots__ = ("blocks", "hashes", "num_tokens")

    def __init__(self, num_tokens: int, hashes: Sequence[int]) -> None:
        self.num_tokens = num_tokens
        self.hashes = list(hashes)
        self.blocks: list[int] = []


class BlockPool:
    """Blocks of the KV cache, with the computed tokens of full blocks identified by hash.

    Implements the record that the scheduler reads (``core.scheduler.blocks``).
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        """In the order in which they are handed out."""
        self._num_holders = [0] * num_blocks
        self._hash_of: list[int | None] = [None] * num_blocks
        self._blocks_of: dict[int, dict[int, None]] = {}
        """Blocks by hash; several if requests computed the same tokens at the same time."""
        self._requests: dict[str, _Request] = {}
        self._num_allocated = 0

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def allocated(self) -> int:
        return self._num_allocated

    def keeps_to(self, request_id: str, num_blocks: int) -> bool:
        return len(self._requests[request_id].blocks) <= num_blocks

    def shared_by(self, request_id: str) -> int:
        request = self._requests.get(request_id)
        return sum([self._num_holders[b] > 1 for b in request.blocks]) if request else 0

    def num_cached(self, request_id: str, last_found: int) -> int:
        hashes, index = self._requests[request_id].hashes, last_found // self._block_size
        is_there = not index or hashes[index - 1] in self._blocks_of
        if is_there and (index == len(hashes) or hashes[index] not in self._blocks_of):
            return last_found
        return self.find(request_id).num_tokens

    def find(self, request_id: str) -> Hit:
        request = self._requests.get(request_id)
        if request is None or request.blocks:
            return MISS
        found = self._find(request)
        num_held = sum([self._num_holders[block] > 0 for block in found])
        return Hit(len(found) * self._block_size, num_held)

    def add(self, request_id: str, num_tokens: int, hashes: Sequence[int]) -> None:
        """Register a request with its prompt's length and block hashes."""
        self._requests[request_id] = _Request(num_tokens, hashes)

    def append(self, request_id: str, hashes: Iterable[int]) -> None:
        """Add a token to a request, with the hashes of the blocks that it completes."""
        request = self._requests[request_id]
        request.num_tokens += 1
        request.hashes += hashes

    def compute(self, request_id: str, num_computed: int) -> None:
        """Allocate blocks for a request's ``num_computed`` tokens, starting with cached ones if it
        holds none. Raises KeyError if too few are free."""
        request = self._requests[request_id]
        if not request.blocks:
            self._take_found(request)
        held, hashes = request.blocks, request.hashes
        for _ in range(len(held), -(-num_computed // self._block_size)):
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self._num_holders[block] = 1
            self._num_allocated += 1
            held.append(block)
        for index in range(min(num_computed // self._block_size, len(hashes)) - 1, -1, -1):
            if self._hash_of[held[index]] is not None:
                break
            self._hash_of[held[index]] = hashes[index]
            self._blocks_of.setdefault(hashes[index], {})[held[index]] = None

    def release(self, request_id: str) -> None:
        """Free the blocks of a request, which stays registered and may begin again."""
        request = self._requests[request_id]
        unnamed, named = list[int](), list[int]()
        self._num_allocated -= len(request.blocks)
        for block in reversed(request.blocks):
            self._num_holders[block] -= 1
            if not self._num_holders[block]:
                (unnamed if self._hash_of[block] is None else named).append(block)
        request.blocks = []
        for block in named:
            self._free[block] = None
        for block in reversed(unnamed):
            self._free[block] = None
            self._free.move_to_end(block, last=False)

    def remove(self, request_id: str) -> None:
        """Free the blocks of an ended request and forget it."""
        self.release(request_id)
        del self._requests[request_id]

    def _take_found(self, request: _Request) -> None:
        request.blocks = self._find(request)
        for block in request.blocks:
            if not self._num_holders[block]:
                del self._free[block]
            self._num_holders[block] += 1
        self._num_allocated += len(request.blocks)

    def _find(self, request: _Request) -> list[int]:
        found: list[int] = []
        # The last token is always computed: it yields the next one.
        for hashed in request.hashes[: (request.num_tokens - 1) // self._block_size]:
            blocks = self._blocks_of.get(hashed)
            if not blocks:
                break
            found.append(next(iter(blocks)))
        return found

    def _forget(self, block: int) -> None:
        """Drop a block's cached contents before it is handed out."""
        hashed = self._hash_of[block]
        if hashed is not None:
            self._hash_of[block] = None
            del self._blocks_of[hashed][block]
            if not self._blocks_of[hashed]:
                del self._blocks_of[hashed]
