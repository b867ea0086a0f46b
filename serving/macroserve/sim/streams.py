"""The responses that one instance decodes. They go ahead together: a step of all costs O(1)."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush

from macroserve.sim.record import Record


class Streams:
    """Records by request id, each brought up to date when it leaves.

    num_tokens: in the cache, of all together. num_hidden, num_hidden_tokens: the responses of
    which the hidden state is kept, and their tokens.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_hidden = 0
        self.num_hidden_tokens = 0
        self._records: dict[str, Record] = {}
        self._fresh: list[Record] = []
        self._ends_s = array("d")
        self._finishing: list[tuple[int, int, Record]] = []
        self._num_added = 0

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._records

    def add(self, record: Record) -> None:
        """From now on it has a token in each step."""
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

    def pop(self, request_id: str) -> Record:
        record = self._records.pop(request_id)
        record.emit(self._ends_s[record.as_of_step :])
        record.last_step = -1
        self.num_tokens -= record.num_tokens
        if record.is_hidden:
            self.num_hidden -= 1
            self.num_hidden_tokens -= record.num_tokens
        return record

    def begin(self, now: float) -> None:
        """A batch of all of them starts."""
        for record in self._fresh:
            record.decoding_s = now
        self._fresh.clear()

    def step(self, ends_s: Sequence[float]) -> list[Record]:
        """Steps end at these times, none of which but the last is any response's last one; returns
        the responses that have ended."""
        self._ends_s.extend(ends_s)
        self.num_tokens += len(ends_s) * len(self)
        self.num_hidden_tokens += len(ends_s) * self.num_hidden
        ended = []
        while self._finishing and self._next_end() <= len(self._ends_s):
            ended.append(self.pop(heappop(self._finishing)[2].request.request_id))
        return ended

    @property
    def num_steps_left(self) -> int:
        """Until the first response ends, of which there is at least one."""
        return self._next_end() - len(self._ends_s)

    def others(self, request_ids: Iterable[str]) -> list[str]:
        known = set(request_ids)
        return [request_id for request_id in self._records if request_id not in known]

    def _next_end(self) -> int:
        """The step with which the first response ends; past all steps if there is none."""
        while self._finishing:
            last_step, _, record = self._finishing[0]
            if record.last_step == last_step:
                return last_step
            heappop(self._finishing)  # it has left
        return len(self._ends_s) + 1
