"""Rounds of a pipeline: each batch runs as one micro-batch per stage.

The stages hold successive layers, and each works on a different micro-batch. A decode needs its
token of the previous round, which has passed all stages by then. So the scheduler decides whole
rounds, each as long as the gap between two tokens; all targets and predictions are for rounds.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice

from macroserve.core.batch import Batch, BatchKind, BatchResult, HandedBack, Prefill
from macroserve.core.scheduler.scheduler import InstanceScheduler

LEAST_PIECE_TOKENS = 256
"""Minimum tokens of a prompt's pieces, as each reads all weights of its stage."""


def piece_tokens(num_tokens: int, num_stages: int) -> int:
    """Return the prompt tokens of one micro-batch in a round of ``num_tokens``."""
    return max(LEAST_PIECE_TOKENS, -(-num_tokens // num_stages))


def decode_share(num_decodes: int, num_stages: int) -> int:
    """Return the maximum decodes of one micro-batch in a round of ``num_decodes``."""
    return -(-num_decodes // num_stages)


@dataclass(slots=True)
class _Round:
    """One batch of the scheduler until the last of its micro-batches has ended."""

    batch: Batch
    num_left: int
    """Micro-batches still to be decided."""
    decodes: tuple[str, ...]
    """Ids of the decodes in no micro-batch yet."""
    prompts: dict[str, Prefill]
    """The part of each prefill in no micro-batch yet, by request id."""
    num_in_flight: int = 0
    """Micro-batches in flight."""
    is_promised: bool = False
    """Whether the scheduler has received ``prefilled``, ``emitted`` and ``cached``, the started
    part of the batch as in ``BatchResult``."""
    prefilled: Counter[str] = field(default_factory=Counter[str])
    emitted: dict[str, int] = field(default_factory=dict[str, int])
    cached: dict[str, int] = field(default_factory=dict[str, int])
    finished: list[str] = field(default_factory=list[str])
    """As for ``InstanceScheduler.settle``."""
    more: Counter[str] = field(default_factory=Counter[str])
    """As for ``InstanceScheduler.settle``."""
    ended_s: float = 0.0
    """When the last micro-batch ended, seconds."""


class Rounds:
    """Adapter between an instance scheduler and an engine with several stages.

    The engine calls its methods instead of the scheduler's, for micro-batches. Each micro-batch has
    an equal share of the decodes and prompts. A decode whose last token may be in flight is left to
    a later one, possibly of the next round, so that decodes that began together spread over stages.

    scheduler: decides the rounds; its limit on tokens is that of a round.
    """

    def __init__(self, scheduler: InstanceScheduler, num_stages: int) -> None:
        self._scheduler = scheduler
        self._num_stages = num_stages
        self._current = _Round(Batch(BatchKind.IDLE), 0, (), {}, is_promised=True)
        self._in_flight: deque[_Round | None] = deque()
        """Round of each micro-batch in flight; None for one after all work of its round."""
        self._recent: deque[set[str]] = deque(maxlen=num_stages - 1)
        """Ids of the requests that get a token from each of the last micro-batches."""
        self._ended: set[str] = set()
        """Ids of ended requests not yet reported to the scheduler."""

    def schedule(self, now: float) -> Batch:
        """Return the next micro-batch; the first of a round includes preemptions and hand-backs."""
        preempted, handed_back = tuple[str, ...](), tuple[HandedBack, ...]()
        if not self._current.num_left or not self._in_flight:
            self._close()
            batch = self._scheduler.schedule(now)
            prompts = {prefill.request_id: prefill for prefill in batch.prefills}
            self._current = _Round(batch, self._num_stages, batch.decodes, prompts)
            preempted = tuple([name for name in batch.preempted if name not in self._ended])
            handed_back = batch.handed_back
        current = self._current
        decodes = self._next_decodes(current)
        prefills = self._next_prefills(current, len(decodes))
        current.num_left -= 1
        predicted_s = current.batch.predicted_s if decodes or prefills else 0.0
        return replace(
            current.batch,
            prefills=prefills,
            decodes=decodes,
            preempted=preempted,
            handed_back=handed_back,
            predicted_s=predicted_s,
        )

    def promise(self, batch: Batch, taken: BatchResult) -> None:
        """Record the part of the last micro-batch that the engine has started."""
        current = self._current
        emitted = {**dict.fromkeys(batch.decodes, taken.decoded), **taken.emitted}
        with_token = {name for name, num_tokens in emitted.items() if num_tokens}
        self._recent.append(with_token)
        self._in_flight.append(None if current.is_promised else current)
        if current.is_promised:
            return
        current.num_in_flight += 1
        for request_id in with_token:
            current.prompts.pop(request_id, None)  # the cache had the rest of it
        current.prefilled.update(taken.prefilled)
        current.emitted |= taken.emitted if taken.decoded else emitted
        current.cached |= taken.cached
        if not (current.num_left and self._has_work(current)):
            self._promise(current)

    def settle(self, finished: Iterable[str], more: Mapping[str, int], now: float) -> None:
        """Apply the result of the oldest micro-batch in flight."""
        oldest = self._in_flight.popleft()
        if oldest is None:
            return
        oldest.num_in_flight -= 1
        oldest.finished += finished
        oldest.more.update(more)
        oldest.ended_s = now
        self._ended.update(oldest.finished)
        if oldest.is_promised and not oldest.num_in_flight:
            self._settle(oldest)

    def _next_decodes(self, current: _Round) -> tuple[str, ...]:
        """Take the decodes of the next micro-batch from the round."""
        waiting = [name for name in current.decodes if self._is_alive(name)]
        busy = set[str]().union(*self._recent)
        share = decode_share(len(current.batch.decodes), self._num_stages)
        chosen = dict.fromkeys(islice((name for name in waiting if name not in busy), share))
        current.decodes = tuple([name for name in waiting if name not in chosen])
        return tuple(chosen)

    def _next_prefills(self, current: _Round, num_decodes: int) -> tuple[Prefill, ...]:
        """Take the prompts of the next micro-batch from the round; the last one gets the rest."""
        room = self._scheduler.config.max_batch_tokens // self._num_stages - num_decodes
        if current.num_left > 1:
            num_tokens = sum([prefill.num_tokens for prefill in current.batch.prefills])
            room = min(room, piece_tokens(num_tokens, self._num_stages))
        pieces: list[Prefill] = []
        for request_id, prefill in tuple(current.prompts.items()):
            if room <= 0:
                break
            num_tokens = min(room, prefill.num_tokens) if self._is_alive(request_id) else 0
            if num_tokens:
                pieces.append(replace(prefill, num_tokens=num_tokens))
                room -= num_tokens
            if num_tokens and num_tokens < prefill.num_tokens:
                rest = prefill.num_tokens - num_tokens
                current.prompts[request_id] = replace(prefill, num_tokens=rest)
            else:
                del current.prompts[request_id]
        return tuple(pieces)

    def _is_alive(self, request_id: str) -> bool:
        return request_id in self._scheduler.sequences and request_id not in self._ended

    def _has_work(self, current: _Round) -> bool:
        return any(map(self._is_alive, chain(current.decodes, current.prompts)))

    def _close(self) -> None:
        """End an unfinished round whose last requests have left; nothing is in flight."""
        if not self._current.is_promised:
            self._promise(self._current)
            self._settle(self._current)

    def _promise(self, current: _Round) -> None:
        batch = current.batch
        current.is_promised = True
        left_out = dict.fromkeys(current.decodes, 0)
        taken = BatchResult(
            batch.predicted_s,
            {p.request_id: current.prefilled[p.request_id] for p in batch.prefills},
            {**left_out, **current.emitted},
            decoded=int(bool(batch.decodes)),
            cached=current.cached,
        )
        self._scheduler.promise(batch, taken)

    def _settle(self, ended: _Round) -> None:
        self._ended.difference_update(ended.finished)
        self._scheduler.settle(ended.finished, ended.more, ended.ended_s)
