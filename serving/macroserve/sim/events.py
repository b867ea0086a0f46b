"""The order of things in virtual time."""

import heapq
from typing import Generic, TypeVar

EventT = TypeVar("EventT")


class EventQueue(Generic[EventT]):
    """Events by their time; of equal times the one put in first comes first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, EventT]] = []
        self._num_put = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def put(self, at_s: float, event: EventT) -> None:
        heapq.heappush(self._heap, (at_s, self._num_put, event))
        self._num_put += 1

    def pop(self) -> tuple[float, EventT]:
        at_s, _, event = heapq.heappop(self._heap)
        return at_s, event
