"""The host cache is what vLLM's offload connector keeps of prompts in the memory of the host.

vLLM stores the blocks of prompts there as they are computed, and loads those that the pool no
longer has before a prompt's prefill, while other requests run.
"""

from collections.abc import Iterable

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.v1.request import Request

ASSUMED_BYTES_PER_S = 20e9
"""Bytes that a device loads per second until a load has been seen: what PCIe 4.0 with 16 lanes
reaches. PCIe 5.0 has twice as much."""
FORGETTING = 0.9
"""Weight of a load after one more: some ten loads are remembered."""


class HostCache:
    """The cache predicts the time of a load from the last ones.

    token_bytes: KV of a token on each device.
    block_size: tokens of a block.
    """

    def __init__(self, connector: KVConnectorBase_V1, token_bytes: float, block_size: int) -> None:
        self._connector = connector
        self._block_size = block_size
        self._num_loaded, self._loaded_s = 1.0, token_bytes / ASSUMED_BYTES_PER_S
        self._under_way: dict[str, tuple[int, float]] = {}
        """Tokens, and the time at which the load began, by request id."""

    def num_beyond(self, request: Request, num_local: int) -> int:
        """Return the tokens of a waiting prompt that can be loaded beyond the ``num_local`` that
        the pool has; none while others load or store the same."""
        whole = num_local - num_local % self._block_size
        num_tokens, _ = self._connector.get_num_new_matched_tokens(request, whole)
        return max(0, whole + (num_tokens or 0) - num_local)

    def load_s(self, num_tokens: int) -> float:
        """Return the predicted time to load tokens, seconds."""
        return num_tokens * self._loaded_s / self._num_loaded

    def begin(self, request_id: str, num_tokens: int, now: float) -> None:
        """Note that the load of a request has begun."""
        self._under_way[request_id] = num_tokens, now

    def end(self, request_ids: Iterable[str], now: float) -> None:
        """Learn from loads that have ended; others are ignored."""
        for request_id in request_ids:
            if begun := self._under_way.pop(request_id, None):
                num_tokens, begun_s = begun
                self._num_loaded = FORGETTING * self._num_loaded + num_tokens
                self._loaded_s = FORGETTING * self._loaded_s + now - begun_s

    def forget(self, request_id: str) -> None:
        """Drop what is known of a request that has ended."""
        self._under_way.pop(request_id, None)
