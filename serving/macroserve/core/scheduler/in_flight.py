"""The batches in flight are those that an engine has taken on and whose results are not known."""

from collections import deque
from dataclasses import dataclass, field
from math import inf

from macroserve.core.batch import Batch, BatchResult
from macroserve.core.latency import Work
from macroserve.core.scheduler.sequence import Sequence


@dataclass(slots=True)
class Flight:
    """A flight is one batch from the moment the engine takes it on until its result is taken in.

    Attributes:
        taken: what the engine took on, with the tokens that will come out if nothing ends early.
        work: work of what it took on.
        decided_s: when the batch was decided, seconds.
        ends_s: when it is expected to end, seconds.
        expected_gap_s: expected time from the decodes' last tokens to these, seconds.
        gap_s: that time, once it has ended, seconds.
        elapsed_s: time of the engine that it took, once it has ended, seconds.
        num_added: sequences that had ever decoded here when it was taken on, see ``Decoding``.
        first: sequences that get their first token by it.
    """

    batch: Batch
    taken: BatchResult
    work: Work
    decided_s: float
    ends_s: float
    expected_gap_s: float = 0.0
    gap_s: float = 0.0
    elapsed_s: float = 0.0
    num_added: int = 0
    first: list[Sequence] = field(default_factory=list[Sequence])

    def tokens_of(self, request_id: str) -> int:
        """Return the tokens that a request is to get by this batch."""
        usual = self.taken.decoded if request_id in self.batch.decodes else 0
        return self.taken.emitted.get(request_id, usual)


class InFlight:
    """The queue holds the flights in order; an engine ends them in the order in which it took them
    on.

    Attributes:
        num_begun: batches that the engine ever took on.
        num_ahead: those of them that it took on while another was in flight.
    """

    def __init__(self) -> None:
        self.num_begun = 0
        self.num_ahead = 0
        self._flights: deque[Flight] = deque()
        self._ended_s = -inf
        self._decoded_s = -inf

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def ends_s(self) -> float:
        """Return when the last of them is expected to end, or the last one ended, seconds."""
        return self._flights[-1].ends_s if self._flights else self._ended_s

    @property
    def decoded_s(self) -> float:
        """Return when the last decodes ended, or are expected to end, seconds."""
        expected = [flight.ends_s for flight in self._flights if flight.taken.decoded]
        return expected[-1] if expected else self._decoded_s

    def begin(self, batch: Batch, taken: BatchResult, work: Work, decided_s: float) -> Flight:
        """Add a batch that the engine took on, and return its flight."""
        self.num_begun += 1
        self.num_ahead += bool(self._flights)
        ends_s = max(decided_s, self.ends_s) + batch.predicted_s
        self._flights.append(Flight(batch, taken, work, decided_s, ends_s))
        return self._flights[-1]

    def end(self, now: float) -> Flight:
        """Remove the oldest flight, which has ended, and return it."""
        flight = self._flights.popleft()
        flight.elapsed_s = now - max(flight.decided_s, self._ended_s)
        flight.gap_s = now - self._decoded_s
        self._ended_s = ends_s = now
        if flight.taken.decoded:
            self._decoded_s = now
        for later in self._flights:
            later.ends_s = ends_s = ends_s + later.batch.predicted_s
        return flight

    def tokens_of(self, request_id: str) -> int:
        """Return the tokens that a request is to get by the batches in flight."""
        return sum([flight.tokens_of(request_id) for flight in self._flights])
