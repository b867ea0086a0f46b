"""The costs of a waiting prompt follow from the tokens that the prefix cache does not have."""

from macroserve.core.latency import LatencyModel
from macroserve.core.scheduler.blocks import MISS, EngineCache, Hit
from macroserve.core.scheduler.estimators import Averages
from macroserve.core.scheduler.sequence import Sequence
from macroserve.core.scheduler.waiting import WaitingQueue

LOOK_UPS = 16
"""Number of waiting prompts that the prefix cache is asked for in each iteration."""


class PromptCosts:
    """The costs are set when a prompt arrives, and again when the prefix cache has more or less of
    it.

    cache: the engine's record of its blocks, if it has one.
    """

    def __init__(
        self,
        latency: LatencyModel,
        max_batch_tokens: int,
        averages: Averages,
        cache: EngineCache | None,
    ) -> None:
        self._latency = latency
        self._max_batch_tokens = max_batch_tokens
        self._averages = averages
        self._cache = cache
        self._next = 0

    def arrive(self, seq: Sequence) -> None:
        """Set the costs of a prompt that is new."""
        self._set(seq, MISS if self._cache is None else self._cache.find(seq.request_id))

    def come_back(self, seq: Sequence) -> None:
        """Set the time of a preempted sequence's prefill; the others keep what they lose by it."""
        seq.prefill_s = self._prefill_s(seq)

    def wait_again(self, preempted: list[Sequence], waiting: WaitingQueue) -> list[Sequence]:
        """Let preempted sequences wait for their prefill; return them."""
        for seq in preempted:
            self.come_back(seq)
            waiting.add(seq)
        return preempted

    def renew(self, waiting: WaitingQueue) -> None:
        """Ask the prefix cache again for some of the waiting prompts, in turns: it has got or
        dropped blocks since."""
        if self._cache is None or not waiting:
            return
        first = self._next if self._next < len(waiting) else 0
        self._next = first + LOOK_UPS
        for seq in waiting.some(first, LOOK_UPS):
            num_tokens = self._cache.num_cached(seq.request_id, seq.num_cached)
            if num_tokens != seq.num_cached:
                waiting.remove(seq)
                self._set(seq, self._cache.find(seq.request_id))
                waiting.add(seq)

    def _set(self, seq: Sequence, hit: Hit) -> None:
        seq.count_cached(hit.num_tokens)
        prefill_s = self._prefill_s(seq)
        seq.cost(prefill_s, prefill_s / self._averages.prefill_share, hit.load_s)

    def _prefill_s(self, seq: Sequence) -> float:
        return self._latency.batched_prefill_s(
            seq.num_to_prefill, self._max_batch_tokens, seq.num_cached
        )
