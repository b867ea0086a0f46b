"""Costs of waiting prompts: the time of their prefill, and the time that they cost others."""

from macroserve.core.latency import LatencyModel
from macroserve.core.request import Request
from macroserve.core.scheduler.blocks import MISS, EngineCache, Hit
from macroserve.core.scheduler.estimators import Averages
from macroserve.core.scheduler.running import Running
from macroserve.core.scheduler.sequence import Sequence
from macroserve.core.scheduler.waiting import WaitingQueue

LOOK_UPS = 16
"""Waiting prompts looked up in the prefix cache in each iteration."""


class PromptCosts:
    """Costs of prompts by their uncached tokens, kept up to date with the prefix cache."""

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
        """Set the costs of a new prompt."""
        self._set(seq, MISS if self._cache is None else self._cache.find(seq.request_id))

    def come_back(self, seq: Sequence) -> None:
        """Set the prefill time of a preempted sequence; its cost to others stays the same."""
        seq.prefill_s = self._prefill_s(seq)

    def wait_again(self, preempted: list[Sequence], waiting: WaitingQueue) -> list[Sequence]:
        """Requeue preempted sequences; return them."""
        for seq in preempted:
            self.come_back(seq)
            waiting.add(seq)
        return preempted

    def renew(self, waiting: WaitingQueue) -> None:
        """Look up the next ``LOOK_UPS`` waiting prompts in the prefix cache, which has changed."""
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


def memory_cost_s(
    request: Request,
    num_new_tokens: int,
    running: Running,
    waiting: WaitingQueue,
    latency: LatencyModel,
) -> float:
    """Return the time that the memory of a request costs others until its response ends, seconds; 0
    if there is enough memory for all that wait."""
    blocks, decoding = running.blocks, running.decoding
    num_tokens = request.num_prompt_tokens + num_new_tokens
    claimed = waiting.num_prompt_tokens + waiting.predicted_tokens + num_tokens
    if claimed <= blocks.free * blocks.block_size:
        return 0.0
    pool_share = blocks.blocks_for(num_tokens) / blocks.num_blocks
    num_drafted = len(decoding) * decoding.speculation.drafted
    work = latency.work((), len(decoding), decoding.num_tokens, num_drafted=num_drafted)
    num_steps = num_new_tokens / decoding.speculation.emitted
    return pool_share * num_steps * latency.predict(work)
