"""Exponential backoff for operations that fail."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """A delay that doubles with every consecutive failure.

    The defaults suit process starts: a lack of memory or a full disk seldom clears within seconds.
    """

    first_s: float = 1.0
    """Delay after the first failure, seconds."""
    max_s: float = 60.0
    """Longest delay, seconds."""

    def delay_s(self, num_failures: int) -> float:
        """Return the delay after ``num_failures`` consecutive failures, seconds; 0.0 after none."""
        if num_failures < 1:
            return 0.0
        # The limit of the exponent avoids overflow; the delay is max_s long before.
        return min(self.max_s, self.first_s * 2.0 ** min(num_failures - 1, 30))


@dataclass(frozen=True, slots=True)
class OperationFailure:
    num_failures: int
    """Consecutive failures, including this one."""
    cause: str
    retry_in_s: float
    """Seconds until the operation may be tried again."""
    is_new: bool
    """Whether the cause differs from the previous failure's."""


class Retries:
    """Consecutive failures of named operations, and when each may be tried again.

    ``now`` is in seconds on any monotonic clock.
    """

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._failures: dict[str, OperationFailure] = {}
        self._next_s: dict[str, float] = {}

    def failed(self, name: str, cause: str, now: float) -> OperationFailure:
        before = self._failures.get(name)
        count = 1 + (before.num_failures if before else 0)
        delay_s = self._backoff.delay_s(count)
        failure = OperationFailure(count, cause, delay_s, before is None or before.cause != cause)
        self._failures[name] = failure
        self._next_s[name] = now + delay_s
        return failure

    def succeeded(self, name: str) -> None:
        self._failures.pop(name, None)
        self._next_s.pop(name, None)

    def may_try(self, name: str, now: float) -> bool:
        return now >= self._next_s.get(name, now)

    def has_failed(self, name: str) -> bool:
        """Return whether the last try of ``name`` failed."""
        return name in self._failures
