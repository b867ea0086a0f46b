"""Exponential backoff spaces the tries of an operation that fails."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay doubles with every consecutive failure.

    The defaults are for starts of processes: a host that lacks memory or a disk that is full seldom
    recovers within seconds, and after a repair the next try comes within ``max_s``.
    """

    first_s: float = 1.0
    """Delay after the first failure, seconds."""
    max_s: float = 60.0
    """Longest delay, seconds."""

    def delay_s(self, num_failures: int) -> float:
        """Return the seconds to wait after ``num_failures`` consecutive failures; 0.0 after
        none."""
        if num_failures < 1:
            return 0.0
        # Beyond 2**30 the delay is always max_s.
        return min(self.max_s, self.first_s * 2.0 ** min(num_failures - 1, 30))


@dataclass(frozen=True, slots=True)
class OperationFailure:
    """Failure of an operation, which may have failed several times in a row."""

    num_failures: int
    """Consecutive failures, this one included."""
    cause: str
    retry_in_s: float
    """Seconds until the operation may be tried again."""
    is_new: bool
    """Whether the cause differs from that of the failure before."""


class Retries:
    """The record counts consecutive failures of named operations and tells when each may be tried
    again.

    ``now`` is in seconds, on any monotonic clock.
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
