"""The host cache: prompts' blocks that vLLM's offload connector keeps in host memory.

vLLM stores the blocks there when they are computed, and loads those that the pool has lost before a
prompt's prefill, while other requests run.
"""

from collections.abc import Iterable

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.v1.request import Request

ASSUMED_BYTES_PER_S = 20e9
"""Assumed bandwidth before the first load, that of PCIe 4.0 with 16 lanes; PCIe 5.0 has twice as
much."""
FORGETTING = 0.9
"""Factor by which each load reduces the weight of earlier ones: about ten loads count."""


class HostCache:
    """The connector, with predicted load times.

    token_bytes: KV bytes of a token on each device.
    block_size: tokens of a block.
    """

    def __init__(self, connector: KVConnectorBase_V1, token_bytes: float, block_size: int) -> None:
        self._connector = connector
        self._block_size = block_size
        self._num_loaded, self._loaded_s = 1.0, token_bytes / ASSUMED_BYTES_PER_S
        self._under_way: dict[str, tuple[int, float]] = {}
        """Tokens and start time of each load, by request id."""

    def num_beyond(self, request: Request, num_local: int) -> int:
        """Return the tokens of a waiting prompt that can be loaded in addition to the ``num_local``
        in the pool; 0 while others load or store the same."""
        whole = num_local - num_local % self._block_size
        num_tokens, _ = self._connector.get_num_new_matched_tokens(request, whole)
        return max(0, whole + (num_tokens or 0) - num_local)

    def load_s(self, num_tokens: int) -> float:
        """Return the predicted time to load tokens, seconds."""
        return num_tokens * self._loaded_s / self._num_loaded

    def begin(self, request_id: str, num_tokens: int, now: float) -> None:
        self._under_way[request_id] = num_tokens, now

    def end(self, request_ids: Iterable[str], now: float) -> None:
        """Update the predicted time with loads that have ended; unknown ids are ignored."""
        for request_id in request_ids:
            if begun := self._under_way.pop(request_id, None):
                num_tokens, begun_s = begun
                self._num_loaded = FORGETTING * self._num_loaded + num_tokens
                self._loaded_s = FORGETTING * self._loaded_s + now - begun_s

    def forget(self, request_id: str) -> None:
        self._under_way.pop(request_id, None)
