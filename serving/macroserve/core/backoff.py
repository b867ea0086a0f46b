"""When to try again what has failed: later and later, up to a longest wait."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """The wait doubles with every failure in a row.

    first_s: wait after the first failure. max_s: the longest. A host that lacks memory or a disk
    that is full seldom heals within seconds, and a person who has mended it waits max_s at most.
    """

    first_s: float = 1.0
    max_s: float = 60.0

    def delay_s(self, num_failures: int) -> float:
        """Seconds to wait after the last of so many failures in a row; 0.0 after none."""
        if num_failures < 1:
            return 0.0
        # Beyond 2**30 the first wait does not matter any more.
        return min(self.max_s, self.first_s * 2.0 ** min(num_failures - 1, 30))


@dataclass(frozen=True, slots=True)
class Failure:
    """is_new: whether the cause is another one than that of the failure before."""

    num_failures: int
    cause: str
    retry_in_s: float
    is_new: bool


class Retries:
    """Failures in a row of things by their names, and when each may be tried again.

    now: seconds on any clock that does not go back.
    """

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._failures: dict[str, Failure] = {}
        self._next_s: dict[str, float] = {}

    def failed(self, name: str, cause: str, now: float) -> Failure:
        before = self._failures.get(name)
        count = 1 + (before.num_failures if before else 0)
        delay_s = self._backoff.delay_s(count)
        failure = Failure(count, cause, delay_s, before is None or before.cause != cause)
        self._failures[name] = failure
        self._next_s[name] = now + delay_s
        return failure

    def succeeded(self, name: str) -> None:
        self._failures.pop(name, None)
        self._next_s.pop(name, None)

    def may_try(self, name: str, now: float) -> bool:
        return now >= self._next_s.get(name, now)

    def has_failed(self, name: str) -> bool:
        """Whether its last try failed."""
        return name in self._failures
