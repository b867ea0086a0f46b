"""Order of the prompts in one iteration: the strategy's, triage or the response ratio."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, heappushpop
from itertools import chain, compress, islice
from math import inf
from typing import NamedTuple

from macroserve.core.scheduler.iteration import IterationInputs
from macroserve.core.scheduler.sequence import Sequence

SPARE_LOAD = 0.7
"""Maximum share of time or seats in use at which an instance takes deferred requests."""

RESERVED_TTFTS = 4.0
"""Period, in TTFT targets, for whose arrivals deferred requests leave memory free. Values from 3 to
6 perform alike; outside that range goodput drops."""

MAX_RESERVED_SHARE = 0.5
"""Maximum share of memory kept free for arrivals, so that a backlog can drain."""


class _Triage(NamedTuple):
    """Requests, begun or not, that are not late yet, and those among them to defer."""

    seqs: list[Sequence]
    """Sorted by deadline, parallel to ``deadlines_s`` and ``costs_s``."""
    deadlines_s: "array[float]"
    costs_s: "array[float]"
    dropped_s: set[float]
    """Costs of the requests to defer."""

    def deferred(self) -> Iterator[Sequence]:
        return compress(self.seqs, map(self.dropped_s.__contains__, self.costs_s))

    def feasible(self) -> Iterator[Sequence]:
        for seq, cost_s in zip(self.seqs, self.costs_s, strict=True):
            if cost_s not in self.dropped_s:
                yield seq

    def defers(self, seq: Sequence) -> bool:
        index = self.seqs.index(seq, bisect_left(self.deadlines_s, seq.deadline_s))
        return self.costs_s[index] in self.dropped_s


class Candidates:
    """Prompts of one iteration; triage runs once, when first needed."""

    def __init__(self, inputs: IterationInputs) -> None:
        self._inputs = inputs
        self._computed: _Triage | None = None
        self._has_slack: bool | None = None

    def in_order(self, admit: bool, chosen: Iterable[Sequence] | None = None) -> Iterator[Sequence]:
        """Yield begun prompts and, if ``admit``, waiting ones in the strategy's order or as
        ``chosen`` by the policy."""
        inputs = self._inputs
        begun = inputs.running.prefilling.values()
        if not admit or not inputs.waiting:
            return iter(begun)
        if chosen is not None:
            return chain(begun, chosen)
        if not inputs.config.strategy.triage:
            return chain(begun, inputs.waiting)
        return self._triaged()

    def infeasible(self) -> Iterator[Sequence]:
        """Yield the requests, begun or not, that triage defers and that are not late yet."""
        return iter(()) if self.has_slack else self._triage().deferred()

    def is_infeasible(self, seq: Sequence) -> bool:
        """Return whether triage defers a request that is not late yet."""
        return not self.has_slack and self._triage().defers(seq)

    @property
    def has_slack(self) -> bool:
        """Return whether all prompts would be in time in any order."""
        if self._has_slack is None:
            waiting, begun = self._inputs.waiting, self._inputs.running.prefilling.values()
            cost_s = waiting.cost_s + sum([seq.cost_left_s for seq in begun])
            deadlines_s = [*waiting.by_deadline.keys[:1], *[seq.deadline_s for seq in begun]]
            self._has_slack = self._free_at_s + cost_s <= min(deadlines_s, default=inf)
        return self._has_slack

    @property
    def _free_at_s(self) -> float:
        """Return when this step's decodes end, before which no first token can come."""
        return self._inputs.now + self._inputs.decode_s

    def _triage(self) -> _Triage:
        if self._computed is not None:
            return self._computed
        now, waiting = self._inputs.now, self._inputs.waiting
        begun = [*self._inputs.running.prefilling.values()]
        num_late, by_deadline = waiting.num_due_before(now), waiting.by_deadline
        seqs, deadlines_s = by_deadline.seqs[num_late:], by_deadline.keys[num_late:]
        starts_s, costs_s = by_deadline.starts_s[num_late:], by_deadline.costs_s[num_late:]
        ttfts_s = by_deadline.ttfts_s[num_late:]
        for seq in reversed(begun):  # of equal deadlines, the first begun is the first
            if not (seq.is_streaming or seq.is_late(now)):
                index = bisect_left(deadlines_s, seq.deadline_s)
                deadlines_s.insert(index, seq.deadline_s)
                starts_s.insert(index, seq.start_by_s)
                costs_s.insert(index, seq.cost_left_s)
                ttfts_s.insert(index, seq.request.slo.ttft_s)
                seqs.insert(index, seq)
        first = chain([seq for seq in begun if seq.is_streaming], waiting.resumed.seqs)
        free_at_s = self._free_at_s + sum([seq.cost_left_s for seq in first])
        dropped_s = infeasible(starts_s, costs_s, ttfts_s, free_at_s)
        self._computed = _Triage(seqs, deadlines_s, costs_s, dropped_s)
        return self._computed

    def _triaged(self) -> Iterator[Sequence]:
        """Yield prompts in the order of triage.

        1. Requests whose reader has seen a token.
        2. The oldest late request, once the tokens credited to late ones cover it.
        3. Requests that can be in time: by response ratio while any order will do, else by
           deadline.
        4. If there is room, deferred and late requests.

        A late request is thus served before 1 / LATE_SHARE times its tokens and those of the late
        ones ahead of it have been prefilled.
        """
        now, waiting = self._inputs.now, self._inputs.waiting
        num_late = waiting.num_due_before(now)
        prefilling = self._inputs.running.prefilling.values()
        begun = sorted(
            [seq for seq in prefilling if not seq.is_streaming], key=lambda seq: seq.deadline_s
        )
        behind = [seq for seq in begun if seq.is_late(now) or self.is_infeasible(seq)]
        yield from [seq for seq in prefilling if seq.is_streaming]
        yield from waiting.resumed.seqs
        late = chain(behind, islice(waiting.by_deadline.seqs, num_late))
        turn = next((seq for seq in late if seq.is_late(now)), None)
        if turn and waiting.promised_tokens < turn.num_to_prefill:
            turn = None
        if turn:
            yield turn
        if self.has_slack:
            yield from [seq for seq in begun if seq not in behind]
            yield from waiting.by_response_ratio(now)
        else:
            yield from self._triage().feasible()
        if self._has_room:
            deferred = [seq for seq in self.infeasible() if seq not in behind]
            for seq in chain(behind, deferred, islice(waiting.by_deadline.seqs, num_late)):
                if seq is not turn:
                    yield seq

    @property
    def _has_room(self) -> bool:
        """Return whether deferred requests may begin without harm to future arrivals: while little
        time, memory and seats are in use, or nothing decodes."""
        inputs = self._inputs
        if not inputs.decoding:
            return True
        in_use = max(
            inputs.decode_token_s / inputs.decoding.min_tpot_s,
            len(inputs.running) / inputs.config.max_num_seqs,
        )
        if in_use > SPARE_LOAD or inputs.rests:
            return False
        blocks = inputs.running.blocks
        coming = RESERVED_TTFTS * inputs.inflow.coming_tokens(inputs.now)
        return blocks.free >= min(
            coming / blocks.block_size, MAX_RESERVED_SHARE * blocks.num_blocks
        )


def infeasible(
    starts_s: Iterable[float],
    costs_s: Iterable[float],
    ttfts_s: Iterable[float],
    free_at_s: float,
) -> set[float]:
    """Return the costs of the requests to defer, for requests ordered by deadline.

    Moore and Hodgson's rule: take the jobs by deadline, and whenever one would miss it, drop the
    costliest so far. If costs equal service times, no other choice keeps more. Jobs with longer
    TTFT targets give way first, so the tightest class loses no job to others. O(n log n): about
    0.3 ms for 2,000 requests; a heap of pairs of cost and index would take twice as long.

    starts_s: latest start of each request: its deadline minus its service time.
    costs_s: time that each takes from the requests behind it, at least its service; all different.
    ttfts_s: TTFT target of each.
    free_at_s: when the instance is free.
    """
    kept: dict[float, list[float]] = {}  # by target, negative: a heap's first item is the least
    dropped = set[float]()
    next_s, target_s, alike = free_at_s, 0.0, list[float]()
    for start_s, cost_s, ttft_s in zip(starts_s, costs_s, ttfts_s, strict=True):
        if ttft_s != target_s:
            target_s, alike = ttft_s, kept.setdefault(ttft_s, [])
        if next_s > start_s and len(kept) > 1:
            for longer_s in sorted(filter(ttft_s.__lt__, kept), reverse=True):
                while next_s > start_s and kept[longer_s]:
                    costliest_s = -heappop(kept[longer_s])
                    next_s -= costliest_s
                    dropped.add(costliest_s)
        if next_s <= start_s:
            heappush(alike, -cost_s)
            next_s += cost_s
        else:
            costliest_s = -heappushpop(alike, -cost_s)
            next_s += cost_s - costliest_s
            dropped.add(costliest_s)
    return dropped


def due_to_offload(inputs: IterationInputs, candidates: Candidates) -> list[Sequence]:
    """Return the requests about to miss their TTFT here, early enough for an HP instance (Ascendra,
    section 5.3).

    A request is offloaded if its slack after the prefill is below the threshold plus a full batch,
    for which it may wait on the HP instance, or here until it is considered again. With triage,
    only deferred requests leave, as the others will be in time.
    """
    now, config, waiting = inputs.now, inputs.config, inputs.waiting
    if not waiting:
        return []
    full_step_s = inputs.latency.prefill_s(config.max_batch_tokens) + inputs.decode_s
    horizon_s = now + config.tuning.offload_threshold_s + full_step_s
    longest_s = inputs.latency.prefill_s(config.max_model_len)
    num_late = waiting.num_due_before(now)
    num_near = waiting.num_due_before(horizon_s + longest_s)
    return [
        seq
        for seq in waiting.by_deadline.seqs[num_late:num_near]
        if now <= seq.deadline_s - seq.prefill_s < horizon_s
        and (not config.strategy.triage or candidates.is_infeasible(seq))
    ]
