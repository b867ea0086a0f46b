"""Requests of a simulated instance, and the batch of those that decode together."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain, islice
from operator import sub

from macroserve.core.request import Request
from macroserve.workload.arrivals import BLOCK_TOKENS


class SimRequest:
    """Progress of a simulated request.

    block_ids, block_tokens, is_open: blocks of its prompt in the load; see ``Arrival``.
    """

    __slots__ = (
        "as_of_step",
        "block_ids",
        "block_tokens",
        "decoding_s",
        "first_s",
        "gaps_s",
        "is_hidden",
        "is_open",
        "last_s",
        "last_step",
        "num_computed",
        "num_emitted",
        "num_output",
        "request",
    )

    def __init__(
        self,
        request: Request,
        num_output: int,
        block_ids: tuple[int, ...] = (),
        block_tokens: int = BLOCK_TOKENS,
        is_open: bool = False,
    ) -> None:
        self.request = request
        self.block_ids = block_ids
        self.block_tokens = block_tokens
        self.is_open = is_open
        self.num_output = num_output
        self.num_computed = 0
        self.num_emitted = 0
        self.first_s = 0.0
        self.last_s = 0.0
        self.is_hidden = False
        self.decoding_s = 0.0
        """When its first decode began."""
        self.gaps_s = array("f")
        """Gaps between its tokens."""
        self.as_of_step = 0
        """Step up to which its tokens were counted by ``DecodingBatch``."""
        self.last_step = -1
        """Step with which its response ends, for ``DecodingBatch``."""

    @property
    def num_tokens(self) -> int:
        return self.request.num_prompt_tokens + self.num_emitted

    @property
    def ended(self) -> bool:
        return self.num_emitted >= self.num_output

    def emit(self, at_s: Sequence[float]) -> None:
        if not at_s:
            return
        if self.num_emitted:
            self.gaps_s.extend(map(sub, at_s, chain((self.last_s,), at_s)))
        else:
            self.first_s = at_s[0]
            self.gaps_s.extend(map(sub, islice(at_s, 1, None), at_s))
        self.num_emitted += len(at_s)
        self.last_s = at_s[-1]


class DecodingBatch:
    """Decoding requests by id, whose own counts are updated when they leave."""

    def __init__(self) -> None:
        self.num_tokens = 0
        """Cached tokens of all requests."""
        self.num_hidden = 0
        """Requests with cached hidden states."""
        self.num_hidden_tokens = 0
        self._records: dict[str, SimRequest] = {}
        self._fresh: list[SimRequest] = []
        self._ends_s = array("d")
        self._finishing: list[tuple[int, int, SimRequest]] = []
        self._num_added = 0

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._records

    def add(self, record: SimRequest) -> None:
        """Add a request, which gets a token in each step from now on."""
        self._records[record.request.request_id] = record
        self._num_added += 1
        record.as_of_step = len(self._ends_s)
        record.last_step = record.as_of_step + record.num_output - record.num_emitted
        heappush(self._finishing, (record.last_step, self._num_added, record))
        self.num_tokens += record.num_tokens
        if record.is_hidden:
            self.num_hidden += 1
            self.num_hidden_tokens += record.num_tokens
        if record.num_emitted == 1:
            self._fresh.append(record)

    def pop(self, request_id: str) -> SimRequest:
        record = self._records.pop(request_id)
        record.emit(self._ends_s[record.as_of_step :])
        record.last_step = -1
        self.num_tokens -= record.num_tokens
        if record.is_hidden:
            self.num_hidden -= 1
            self.num_hidden_tokens -= record.num_tokens
        return record

    def begin(self, now: float) -> None:
        for record in self._fresh:
            record.decoding_s = now
        self._fresh.clear()

    def step(self, ends_s: Sequence[float]) -> list[SimRequest]:
        """Count steps that end at these times; return the responses that end with the last one.

        None may end earlier.
        """
        self._ends_s.extend(ends_s)
        self.num_tokens += len(ends_s) * len(self)
        self.num_hidden_tokens += len(ends_s) * self.num_hidden
        ended = []
        while self._finishing and self._next_end() <= len(self._ends_s):
            ended.append(self.pop(heappop(self._finishing)[2].request.request_id))
        return ended

    @property
    def num_steps_left(self) -> int:
        """Return the steps until the first response ends. Needs a response."""
        return self._next_end() - len(self._ends_s)

    def others(self, request_ids: Iterable[str]) -> list[str]:
        known = set(request_ids)
        return [request_id for request_id in self._records if request_id not in known]

    def _next_end(self) -> int:
        """Return the step with which the first response ends; one past all steps without any."""
        while self._finishing:
            last_step, _, record = self._finishing[0]
            if record.last_step == last_step:
                return last_step
            heappop(self._finishing)  # it has left
        return len(self._ends_s) + 1
