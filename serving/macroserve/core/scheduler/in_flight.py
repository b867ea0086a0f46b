"""Batches in flight: started by the engine, with results not yet known."""

from collections import deque
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from math import inf

from macroserve.core.batch import Batch, BatchResult
from macroserve.core.latency import Work
from macroserve.core.scheduler.sequence import Sequence

WINDOW_DECODES = 1000
"""Decodes over which drafted and emitted tokens are averaged, one per request and step."""


@dataclass(slots=True)
class Flight:
    """One batch in flight; times in seconds."""

    batch: Batch
    taken: BatchResult
    """The part that the engine started, with the tokens that it emits if nothing ends early."""
    work: Work
    """Work of that part."""
    decided_s: float
    ends_s: float
    """Expected end."""
    expected_gap_s: float = 0.0
    """Expected time from the decodes' previous tokens to these."""
    gap_s: float = 0.0
    """The same as measured, once it has ended."""
    elapsed_s: float = 0.0
    """Time that the engine spent on it, once it has ended."""
    num_added: int = 0
    """``Decoding.num_added`` at its start."""
    first: list[Sequence] = field(default_factory=list[Sequence])
    """Sequences whose first token it computes."""

    def tokens_of(self, request_id: str) -> int:
        """Return the tokens that a request gets from this batch."""
        usual = self.taken.decoded if request_id in self.batch.decodes else 0
        return self.taken.emitted.get(request_id, usual)


class InFlight:
    """FIFO of batches in flight."""

    def __init__(self) -> None:
        self.num_begun = 0
        """Batches started so far."""
        self.num_ahead = 0
        """Those started while another was in flight."""
        self._flights: deque[Flight] = deque()
        self._ended_s = -inf
        self._decoded_s = -inf

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def ends_s(self) -> float:
        """Return when the last batch ended or is expected to end, seconds."""
        return self._flights[-1].ends_s if self._flights else self._ended_s

    @property
    def decoded_s(self) -> float:
        """Return when the last decodes ended or are expected to end, seconds."""
        expected = [flight.ends_s for flight in self._flights if flight.taken.decoded]
        return expected[-1] if expected else self._decoded_s

    def begin(self, batch: Batch, taken: BatchResult, work: Work, decided_s: float) -> Flight:
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
        """Return the tokens that a request gets from the batches in flight."""
        return sum([flight.tokens_of(request_id) for flight in self._flights])


class Speculation:
    """Exponentially weighted means of drafted and emitted tokens per decode and step.

    A speculating engine drafts tokens, verifies them together with each decode's last one and emits
    those that it accepts.

    num_drafts: configured drafted tokens per decode; 0 if the engine drafts none.
    """

    def __init__(self, num_drafts: int = 0) -> None:
        self.drafted = float(num_drafts)
        """Mean drafted tokens that a decode verifies per step."""
        self.emitted = 1.0
        """Mean tokens that it emits per step: the accepted ones and one more."""
        self.num_decodes = 0
        """Decodes so far, one per request and step."""
        self.num_emitted = 0
        """Tokens that they emitted."""

    def observe(self, flight: Flight, more: Mapping[str, int], known: Container[str]) -> None:
        """Add the decodes of a batch that has ended, except those of requests no longer ``known``.

        more: tokens beyond the one promised for each, by request id.
        """
        promised = flight.taken.emitted
        decodes = [i for i in flight.batch.decodes if promised.get(i, 1) and i in known]
        num_decodes = len(decodes)
        if not num_decodes:
            return
        num_emitted = num_decodes + sum([more.get(request_id, 0) for request_id in decodes])
        self.num_decodes += num_decodes
        self.num_emitted += num_emitted
        weight = num_decodes / (num_decodes + WINDOW_DECODES)
        if self.num_decodes < WINDOW_DECODES:
            weight = num_decodes / self.num_decodes
        self.drafted += weight * (flight.taken.drafted / num_decodes - self.drafted)
        self.emitted += weight * (num_emitted / num_decodes - self.emitted)
