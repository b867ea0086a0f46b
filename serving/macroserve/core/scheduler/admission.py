"""Choice of the prompts of a batch by tokens, seats and memory, and of the cache of new ones."""

from collections.abc import Container, Iterator, Mapping
from math import ceil

from macroserve.core.scheduler.blocks import MISS, CacheKind
from macroserve.core.scheduler.candidates import Candidates
from macroserve.core.scheduler.iteration import IterationInputs, Pick
from macroserve.core.scheduler.sequence import Sequence, State
from macroserve.core.strategy import HybridCache

SHORT_MEMORY = 0.5
"""Share of free blocks in the pool below which memory is short."""


class Admission:
    """Picks prefills from the candidates of one iteration; picking changes no state."""

    def __init__(self, inputs: IterationInputs, candidates: Candidates) -> None:
        self._inputs = inputs
        self._candidates = candidates

    def pick(
        self,
        num_tokens: int,
        *,
        whole: bool = False,
        max_num_seqs: int | None = None,
        held_back_blocks: int = 0,
        least_tokens: int = 1,
        urgent_tokens: int = 0,
        chosen: Mapping[Sequence, CacheKind] | None = None,
    ) -> list[Pick]:
        """Return prefills of at most ``num_tokens`` in total: begun prompts first, then in queue
        order, or all in the order of triage.

        Only the last may be cut; with ``whole`` it is cut only if it is longer than any batch. No
        prompt begins after the first one without a seat among ``max_num_seqs`` or memory outside
        ``held_back_blocks``, which later ones could starve. Nor does a prompt begin with a piece of
        less than ``least_tokens`` or without a slot for its adapter.

        urgent_tokens: part of ``num_tokens`` reserved for prompts with the tightest target.
        chosen: the only waiting requests to begin, in this order and with these caches.
        """
        picks: list[Pick] = []
        config, running = self._inputs.config, self._inputs.running
        seats = (max_num_seqs or config.max_num_seqs) - len(running)
        blocks = running.blocks.free - held_back_blocks
        default, slots = self.default_cache, AdapterSlots(self._inputs)
        for seq in self._candidates.in_order(seats > 0 and blocks > 0, chosen):
            needed, hit, cache = 0, MISS, seq.cache
            num_before = seq.num_computed
            if seq.state is State.WAITING:
                if not slots.fit(seq):
                    continue
                cache = chosen[seq] if chosen else default
                needed, hit = self.reservation(seq, cache), self._inputs.hit(seq)
                num_before = hit.num_tokens
                if not seats or needed - hit.num_held_blocks > blocks:
                    others = {pick.seq for pick in picks}
                    picks += self._begun(num_tokens, urgent_tokens, others)
                    break
            share = seq.num_prompt - num_before
            most = self._most(seq, num_tokens, urgent_tokens)
            if share > most:
                least = least_tokens if seq.state is State.WAITING else 1
                if most < least or (whole and share <= config.max_batch_tokens):
                    break
                num_tokens = most  # the batch ends with the piece
                share = self._piece(num_before, share, most, is_first=not picks)
                if not share:
                    break
            if seq.state is State.WAITING:
                seats -= 1
                slots.take(seq)
                blocks -= needed - hit.num_held_blocks
            picks.append(Pick(seq, share, num_before, needed, hit.num_held_blocks, cache))
            num_tokens -= share
        return picks

    def reservation(self, seq: Sequence, cache: CacheKind) -> int:
        """Return the blocks to reserve for a request that begins with a cache of that kind."""
        (needed,), blocks = self.reservations([seq]), self._inputs.running.blocks
        return blocks.hidden_blocks(needed) if cache is CacheKind.HIDDEN else needed

    def reservations(self, seqs: list[Sequence]) -> list[int]:
        """Return the KV blocks to reserve for each of ``seqs``.

        For the prompt and a block of the response or its whole predicted length; for the prompt
        alone if responses wait for their own memory. Never for more than the longest response, so
        that a request that fits the pool is admitted when alone.
        """
        strategy, blocks = self._inputs.config.strategy, self._inputs.running.blocks
        if strategy.queues_responses:
            return [blocks.blocks_for(seq.num_prompt) for seq in seqs]
        more, found = blocks.block_size, []
        for seq in seqs:
            if strategy.exact_kv:
                more = self._padded_response(seq)
            found.append(blocks.blocks_for(min(seq.most_tokens, seq.num_prompt + more)))
        return found

    @property
    def default_cache(self) -> CacheKind:
        """Return the cache of a new request, unless the policy chooses one for each. In an
        iteration with preemptions it is KV, so that no preempted request begins again at once."""
        inputs = self._inputs
        blocks, latency = inputs.running.blocks, inputs.latency
        num_hidden = blocks.num_blocks * (inputs.config.hidden_states_per_block or 0)
        if (
            inputs.config.strategy.hybrid_cache is not HybridCache.CHEAP
            or inputs.preempted
            or blocks.free >= SHORT_MEMORY * blocks.num_blocks
            or num_hidden <= blocks.num_blocks * blocks.block_size
        ):
            return CacheKind.KV
        step_s = inputs.decode_s - latency.rebuild_s(inputs.decoding.num_hidden_tokens)
        is_cheap = latency.rebuild_s(num_hidden) < max(step_s, latency.prefill_s(1))
        return CacheKind.HIDDEN if is_cheap else CacheKind.KV

    def _piece(self, num_before: int, num_left: int, num_tokens: int, is_first: bool) -> int:
        """Return the tokens of a piece that ends where the engine can cut a prompt, or 0.

        The first prompt of a batch may exceed ``num_tokens`` by the shortest piece if the batch has
        room: it would never begin otherwise.
        """
        unit = self._inputs.config.piece_tokens
        end = num_before + num_tokens
        if (share := end - end % unit - num_before) > 0:
            return share
        room = self._inputs.config.max_batch_tokens - len(self._inputs.running)
        shortest = min(num_left, unit - num_before % unit)
        return shortest if is_first and shortest <= room else 0

    def _most(self, seq: Sequence, num_tokens: int, urgent_tokens: int) -> int:
        """Return how many of the remaining ``num_tokens`` the prompt may take."""
        is_patient = urgent_tokens and self._inputs.is_patient(seq)
        return num_tokens - urgent_tokens if is_patient else num_tokens

    def _begun(
        self, num_tokens: int, urgent_tokens: int, others: Container[Sequence]
    ) -> Iterator[Pick]:
        """Yield prefills of begun prompts, which have seats and memory, except ``others``."""
        for seq in self._inputs.running.prefilling.values():
            most = self._most(seq, num_tokens, urgent_tokens)
            if most > 0 and seq not in others:
                share = seq.num_to_prefill
                if share > most:
                    share = self._piece(seq.num_computed, share, most, is_first=not others)
                if share:
                    yield Pick(seq, share, seq.num_computed, cache=seq.cache)
                num_tokens -= share

    def _padded_response(self, seq: Sequence) -> int:
        """Return the tokens still expected of a response, plus the padding."""
        expected = self._inputs.lengths.predict(seq.request, seq.num_emitted) - seq.num_emitted
        return ceil((1 + self._inputs.config.tuning.kv_padding) * expected)


class AdapterSlots:
    """Slots of the engine for adapters of running and starting requests.

    Once the longest waiting request is overdue, the next free slot is kept for its adapter.
    """

    def __init__(self, inputs: IterationInputs) -> None:
        self._num_slots = inputs.config.max_adapters
        self._held: set[str] = set()
        if self._num_slots is None:
            return
        adapters = [name for name, num_users in inputs.running.adapters.items() if num_users]
        oldest = inputs.waiting.oldest()
        if oldest and oldest.overdue_from_s < inputs.now:
            adapters.append(oldest.request.adapter)
        self._held.update(filter(None, adapters))

    def fit(self, seq: Sequence) -> bool:
        adapter = seq.request.adapter
        if self._num_slots is None or adapter is None:
            return True
        return len(self._held | {adapter}) <= self._num_slots

    def take(self, seq: Sequence) -> None:
        if seq.request.adapter is not None:
            self._held.add(seq.request.adapter)
