"""What is known of the requests of a run so far."""

from collections import deque

from macroserve.core.request import Slo
from macroserve.sim.judge import Judge, as_client
from macroserve.sim.outcome import DECIDED, Extent, Outcome, Verdict
from macroserve.sim.record import Record


class Verdicts:
    """Which of the requests that count have attained or missed their targets so far.

    num_requests: that will come. judge: of those that end. are_in: the run has gone as far as its
    ``extent`` says.
    """

    def __init__(
        self, num_requests: int, judge: Judge = as_client, extent: Extent = DECIDED
    ) -> None:
        self._num = num_requests
        self._judge = judge
        self._extent = extent
        self._normalised_s = 0.0
        self._coming: set[str] = set()
        self._open: set[str] = set()
        self._unanswered: deque[Record] = deque()
        self._num_attained = 0
        self._num_missed = 0
        self._verdicts: list[Verdict] = []

    @property
    def are_in(self) -> bool:
        if self._extent.to_the_end:
            is_lost = self._normalised_s > self._extent.limit_s * self._num
            return is_lost or len(self._verdicts) == self._num
        num_known = self._num_attained + self._num_missed
        num_in_reach = self._num - self._num_missed
        return num_known == self._num or num_in_reach < self._extent.goal * self._num

    @property
    def outcome(self) -> Outcome:
        num_known = self._num_attained + self._num_missed
        return Outcome(num_known, self._num_attained, self.are_in, tuple(self._verdicts))

    def expect(self, record: Record) -> None:
        """One that counts has come; in the order of their deadlines."""
        self._open.add(record.request.request_id)
        if self._extent.to_the_end:
            self._coming.add(record.request.request_id)
        self._unanswered.append(record)

    def ended(self, record: Record) -> None:
        attained = self._judge(record)
        self._decide(record, attained)
        self._note(record, record.first_s, attained=attained, refused=False)

    def refused(self, record: Record, now: float) -> None:
        self._decide(record, False)
        self._note(record, now, attained=False, refused=True)

    def pass_time(self, now: float) -> None:
        """Whoever is due before ``now`` and has no token yet has missed."""
        unanswered = self._unanswered
        while unanswered and (unanswered[0].num_emitted or unanswered[0].request.deadline_s < now):
            record = unanswered.popleft()
            if not record.num_emitted:
                self._decide(record, False)

    def _decide(self, record: Record, attained: bool) -> None:
        if record.request.request_id in self._open:
            self._open.remove(record.request.request_id)
            self._num_attained += attained
            self._num_missed += not attained

    def _note(self, record: Record, answer_s: float, *, attained: bool, refused: bool) -> None:
        request = record.request
        if request.request_id not in self._coming:
            return
        self._coming.remove(request.request_id)
        after_s = max(0.0, record.last_s - record.first_s)
        verdict = Verdict(
            request.arrival_s,
            request.num_prompt_tokens,
            record.num_output,
            answer_s - request.arrival_s,
            after_s / max(1, record.num_emitted - 1),
            Slo.steady_s(record.gaps_s),
            refused,
            attained,
        )
        self._verdicts.append(verdict)
        if not refused:
            self._normalised_s += verdict.normalised_s
