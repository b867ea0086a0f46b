"""The candidates are the prompts of one iteration in order: queue, triage or response ratio."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import chain, compress, islice
from math import inf
from typing import NamedTuple

from macroserve.core.scheduler.iteration import IterationInputs
from macroserve.core.scheduler.sequence import Sequence
from macroserve.core.scheduler.triage import infeasible

SPARE_LOAD = 0.7
"""Share of its time and of its seats up to which an instance has room for deferred requests."""

RESERVED_TTFTS = 4.0
"""Deferred requests leave memory free for the requests expected within this many TTFT targets.
Values from 3 to 6 perform alike; outside that range goodput drops."""

MAX_RESERVED_SHARE = 0.5
"""Largest share of the memory kept free for them, so that a backlog can drain."""


class _Triage(NamedTuple):
    """Triage decides on the requests, begun or not, that are not late yet."""

    seqs: list[Sequence]
    """Those requests by deadline; ``deadlines_s`` and ``costs_s`` are parallel."""
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
    """The candidates are the prompts of one iteration; triage runs once, when first needed."""

    def __init__(self, inputs: IterationInputs) -> None:
        self._inputs = inputs
        self._computed: _Triage | None = None
        self._has_slack: bool | None = None

    def in_order(self, admit: bool, chosen: Iterable[Sequence] | None = None) -> Iterator[Sequence]:
        """Yield begun prompts and, if ``admit``, waiting ones in the order of the strategy.

        chosen: the waiting requests, and their order, if a policy has chosen them itself.
        """
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
        """Yield the requests, begun or not, that are not late yet and that triage defers."""
        return iter(()) if self.has_slack else self._triage().deferred()

    def is_infeasible(self, seq: Sequence) -> bool:
        """Return whether triage defers a request that is not late yet."""
        return not self.has_slack and self._triage().defers(seq)

    @property
    def has_slack(self) -> bool:
        """Return whether all prompts are in time in whatever order they are served."""
        if self._has_slack is None:
            waiting, begun = self._inputs.waiting, self._inputs.running.prefilling.values()
            cost_s = waiting.cost_s + sum([seq.cost_left_s for seq in begun])
            deadlines_s = [*waiting.by_deadline.keys[:1], *[seq.deadline_s for seq in begun]]
            self._has_slack = self._free_at_s + cost_s <= min(deadlines_s, default=inf)
        return self._has_slack

    @property
    def _free_at_s(self) -> float:
        """Return when the decodes of this step end: no first token comes before that.

        A request that is due earlier would take a seat and be late all the same.
        """
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
        2. The oldest late request, once the tokens promised to late ones cover it.
        3. Requests that can be in time: by deadline, or, while all can in any order, so that
           they wait least for each token.
        4. Where there is room, deferred and late requests.

        So each late request is served before 1 / LATE_SHARE times its tokens, and those of the
        late ones ahead of it, have been prefilled; sooner once one is overdue (``late_credit``).
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
        """Return whether deferred requests take nothing from the requests to come.

        They do not while little time, memory and seats are in use, or while nothing decodes, when
        no other request may be able to continue.
        """
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
