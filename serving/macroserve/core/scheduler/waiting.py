"""Queue of waiting requests, in several orders at once."""

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from heapq import heapify, heappop
from itertools import chain
from math import inf

from macroserve.core.scheduler.sequence import Sequence
from macroserve.core.strategy import Ordering, PromptKey, WaitingPrompt


class SortedRequests:
    """Sequences sorted by a key, then by order of addition.

    ``keys``, ``costs_s``, ``starts_s``, ``ttfts_s`` and ``seqs`` are parallel. Flat arrays, because
    triage reads all of them in each iteration, which is slow through the sequences.
    """

    __slots__ = ("costs_s", "keys", "seqs", "starts_s", "ttfts_s")

    def __init__(self) -> None:
        self.keys = array("d")
        self.costs_s = array("d")
        self.starts_s = array("d")
        self.ttfts_s = array("d")
        self.seqs: list[Sequence] = []

    def __len__(self) -> int:
        return len(self.seqs)

    def add(self, key: float, seq: Sequence) -> None:
        index = bisect_right(self.keys, key)
        self.keys.insert(index, key)
        self.costs_s.insert(index, seq.cost_s)
        self.starts_s.insert(index, seq.start_by_s)
        self.ttfts_s.insert(index, seq.request.slo.ttft_s)
        self.seqs.insert(index, seq)

    def remove(self, key: float, seq: Sequence) -> None:
        index = self.seqs.index(seq, bisect_left(self.keys, key))
        for column in (self.keys, self.costs_s, self.starts_s, self.ttfts_s, self.seqs):
            del column[index]


_KEYS: dict[Ordering, Callable[[Sequence], float]] = {
    Ordering.SLACK: lambda seq: seq.deadline_s - seq.prefill_s,
    Ordering.SJF: lambda seq: seq.num_to_prefill,
    Ordering.LJF: lambda seq: -seq.num_to_prefill,
}


class _Prefills:
    __slots__ = ("num", "seconds")

    def __init__(self) -> None:
        self.num = 0
        self.seconds = 0.0

    def add(self, seq: Sequence) -> None:
        self.num += 1
        self.seconds += seq.prefill_s

    def remove(self, seq: Sequence) -> None:
        self.num -= 1
        self.seconds -= seq.prefill_s


class WaitingQueue:
    """Waiting requests in several orders, so that no iteration sorts, with sums over them."""

    def __init__(self, ordering: Ordering | PromptKey) -> None:
        self.by_arrival = SortedRequests()
        """Requests that have not started, by arrival."""
        self.by_deadline = SortedRequests()
        """The same requests by deadline."""
        self.resumed = SortedRequests()
        """Requests preempted here or begun on another instance. They go first, as a reader may be
        waiting in mid-stream."""
        self.num_tokens = 0
        """Tokens to prefill."""
        self.num_prompt_tokens = 0
        """Prompt tokens, including those in the prefix cache."""
        self.prefill_s = 0.0
        """Predicted time of the prefills, seconds."""
        self.cost_s = 0.0
        """Sum of the costs that triage compares, seconds."""
        self.predicted_tokens = 0
        """Tokens expected of the responses."""
        self.promised_tokens = 0.0
        """Tokens of late requests that may be prefilled before all others."""
        self._by_ttft: dict[float, _Prefills] = {}
        self._overdue_from_s = array("d")
        self._keys: dict[Sequence, float] = {}
        self._key: Callable[[Sequence], float] | None = None
        if ordering is Ordering.FCFS:
            self._ordered = self.by_arrival
        elif ordering is Ordering.EDF:
            self._ordered = self.by_deadline
        else:
            self._ordered = SortedRequests()
            self._key = _key(ordering)

    def __len__(self) -> int:
        return len(self.by_arrival.seqs) + len(self.resumed.seqs)

    def __iter__(self) -> Iterator[Sequence]:
        """Iterate in the strategy's order."""
        yield from self.resumed.seqs
        yield from self._ordered.seqs

    def add(self, seq: Sequence) -> None:
        if _is_resumed(seq):
            self.resumed.add(seq.arrival_s, seq)
        else:
            self.by_arrival.add(seq.arrival_s, seq)
            self.by_deadline.add(seq.deadline_s, seq)
            self._by_ttft.setdefault(seq.request.slo.ttft_s, _Prefills()).add(seq)
            if self._key:
                self._keys[seq] = key = self._key(seq)
                self._ordered.add(key, seq)
        insort(self._overdue_from_s, seq.overdue_from_s)
        self.num_tokens += seq.num_to_prefill
        self.num_prompt_tokens += seq.num_prompt
        self.prefill_s += seq.prefill_s
        self.cost_s += seq.cost_s
        self.predicted_tokens += seq.num_remaining

    def remove(self, seq: Sequence) -> None:
        if _is_resumed(seq):
            self.resumed.remove(seq.arrival_s, seq)
        else:
            self.by_arrival.remove(seq.arrival_s, seq)
            self.by_deadline.remove(seq.deadline_s, seq)
            alike = self._by_ttft[seq.request.slo.ttft_s]
            alike.remove(seq)
            if not alike.num:
                del self._by_ttft[seq.request.slo.ttft_s]
            if self._key:
                self._ordered.remove(self._keys.pop(seq), seq)
        del self._overdue_from_s[bisect_left(self._overdue_from_s, seq.overdue_from_s)]
        self.num_tokens -= seq.num_to_prefill
        self.num_prompt_tokens -= seq.num_prompt
        self.prefill_s = self.prefill_s - seq.prefill_s if self else 0.0
        self.cost_s = self.cost_s - seq.cost_s if self else 0.0
        self.predicted_tokens -= seq.num_remaining

    def prefills_by_ttft(self) -> dict[float, float]:
        """Return the predicted time of prefills that have not started, by TTFT target, seconds."""
        return {ttft_s: alike.seconds for ttft_s, alike in self._by_ttft.items()}

    def some(self, start: int, most: int) -> list[Sequence]:
        """Return up to ``most`` requests from index ``start``, resumed ones first."""
        num_resumed = len(self.resumed.seqs)
        found = self.resumed.seqs[start : start + most]
        first = max(0, start - num_resumed)
        return found + self.by_arrival.seqs[first : first + most - len(found)]

    def oldest(self) -> Sequence | None:
        heads = [order.seqs[0] for order in (self.by_arrival, self.resumed) if order.seqs]
        return min(heads, key=lambda seq: seq.arrival_s, default=None)

    def oldest_arrival_s(self) -> float | None:
        firsts_s = [order.keys[0] for order in (self.by_arrival, self.resumed) if order.keys]
        return min(firsts_s, default=None)

    @property
    def overdue_from_s(self) -> float:
        """Return when the first request becomes overdue; infinite without requests."""
        return self._overdue_from_s[0] if self._overdue_from_s else inf

    @property
    def min_ttft_s(self) -> float:
        """Return the tightest TTFT target, seconds; infinite without requests."""
        resumed = [seq.request.slo.ttft_s for seq in self.resumed.seqs]
        return min(chain(self._by_ttft, resumed), default=inf)

    def num_due_before(self, moment_s: float) -> int:
        """Return the number of requests in ``by_deadline`` that are due before ``moment_s``."""
        return bisect_left(self.by_deadline.keys, moment_s)

    def late(self, now: float) -> list[Sequence]:
        """Return the requests whose first token is late."""
        return self.by_deadline.seqs[: self.num_due_before(now)]

    def by_response_ratio(self, now: float) -> Iterator[Sequence]:
        """Yield requests by wait / (cost x response tokens), largest first.

        Smith's rule minimizes the mean wait for a token but starves long requests; with the wait as
        a factor the order is highest response ratio next (Hansen, 1971).
        """
        worth = [
            ((seq.arrival_s - now) / (seq.cost_s * max(1, seq.predicted_tokens)), seq.ordinal, seq)
            for seq in self.by_arrival.seqs
        ]
        heapify(worth)
        while worth:
            yield heappop(worth)[2]


def _key(ordering: Ordering | PromptKey) -> Callable[[Sequence], float]:
    """Return the sort key, least first, of an order other than by arrival or deadline."""
    if isinstance(ordering, Ordering):
        return _KEYS[ordering]
    return lambda seq: ordering(_facts(seq))


def _facts(seq: Sequence) -> WaitingPrompt:
    return WaitingPrompt(
        seq.num_to_prefill,
        seq.arrival_s,
        seq.deadline_s,
        seq.prefill_s,
        seq.predicted_tokens,
        seq.request.slo_class,
    )


def _is_resumed(seq: Sequence) -> bool:
    return seq.started or seq.is_streaming
