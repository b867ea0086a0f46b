"""What came of simulated requests."""

from collections.abc import Sequence
from dataclasses import dataclass

from macroserve.core.request import Request


class Record:
    """One request as its client sees it, and as the device holds it."""

    __slots__ = (
        "ended",
        "first_s",
        "is_hidden",
        "last_s",
        "num_computed",
        "num_emitted",
        "num_output",
        "request",
    )

    def __init__(self, request: Request, num_output: int) -> None:
        self.request = request
        self.num_output = num_output
        self.num_computed = 0
        self.num_emitted = 0
        self.first_s = 0.0
        self.last_s = 0.0
        self.ended = False
        self.is_hidden = False

    @property
    def num_tokens(self) -> int:
        return self.request.num_prompt_tokens + self.num_emitted

    def emit(self, num_tokens: int, now: float) -> bool:
        """Whether these tokens, the last of which comes out at ``now``, are its last ones."""
        if not self.num_emitted:
            self.first_s = now
        self.num_emitted += num_tokens
        self.last_s = now
        self.ended = self.num_emitted >= self.num_output
        return self.ended

    @property
    def attained(self) -> bool:
        """Whether it ended within both of its targets."""
        slo, took_s = self.request.slo, self.last_s - self.first_s
        return (
            self.ended
            and self.first_s <= self.request.deadline_s
            and took_s <= (self.num_emitted - 1) * slo.tpot_s
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the requests that count.

    requests: those of which it is known. attained: those of them within both targets.
    decided: whether it is known of all, or of so many that the goal is missed.
    """

    requests: int
    attained: int
    decided: bool

    @property
    def attainment(self) -> float:
        """1.0 where there were no requests."""
        return self.attained / self.requests if self.requests else 1.0


class Verdicts:
    """Which of the requests that count have attained or missed their targets so far.

    records: in the order of their deadlines. goal: an attainment; are_in: nothing is open any
    more, or too many are missed for the goal.
    """

    def __init__(self, records: Sequence[Record], goal: float = 0.0) -> None:
        self._open = {record.request.request_id for record in records}
        self._records = records
        self._num_due = 0
        self._num = len(records)
        self._num_attained = 0
        self._num_missed = 0
        self._goal = goal

    @property
    def are_in(self) -> bool:
        return not self._open or self._num - self._num_missed < self._goal * self._num

    @property
    def outcome(self) -> Outcome:
        num_known = self._num_attained + self._num_missed
        return Outcome(num_known, self._num_attained, self.are_in)

    def ended(self, record: Record) -> None:
        self._decide(record, record.attained)

    def missed(self, record: Record) -> None:
        self._decide(record, False)

    def pass_time(self, now: float) -> None:
        """Whoever is due before ``now`` and has no token yet has missed."""
        while self._num_due < self._num:
            record = self._records[self._num_due]
            if record.request.deadline_s >= now:
                return
            self._num_due += 1
            if not record.num_emitted:
                self._decide(record, False)

    def _decide(self, record: Record, attained: bool) -> None:
        if record.request.request_id in self._open:
            self._open.remove(record.request.request_id)
            self._num_attained += attained
            self._num_missed += not attained
