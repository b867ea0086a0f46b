"""Queue of events in virtual time."""

import heapq
from math import inf
from typing import Generic, TypeVar

EventT = TypeVar("EventT")


class EventQueue(Generic[EventT]):
    """Events sorted by time, then by order of insertion."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, EventT]] = []
        self._num_put = 0

    @property
    def next_s(self) -> float:
        """Return the time of the next event, infinite if there is none."""
        return self._heap[0][0] if self._heap else inf

    def put(self, at_s: float, event: EventT) -> None:
        heapq.heappush(self._heap, (at_s, self._num_put, event))
        self._num_put += 1

    def pop(self) -> tuple[float, EventT]:
        at_s, _, event = heapq.heappop(self._heap)
        return at_s, event
