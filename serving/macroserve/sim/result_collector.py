"""Collection of results during a run."""

from heapq import heappop, heappush

from macroserve.core.request import DEFAULT_CLASS, Slo
from macroserve.core.status import Ended
from macroserve.sim.device import SimRequest
from macroserve.sim.results import (
    WHEN_DECIDED,
    RequestResult,
    RunResult,
    SloRule,
    StopRule,
    as_client,
)


class ResultCollector:
    """Counts of requests that have attained or missed their targets so far.

    num_requests: requests that will arrive and count.
    """

    def __init__(
        self, num_requests: int, slo_rule: SloRule = as_client, stop: StopRule = WHEN_DECIDED
    ) -> None:
        self._num = num_requests
        self._slo_rule = slo_rule
        self._stop = stop
        self._num_unsent = 0
        self._normalized_s = 0.0
        self._coming: set[str] = set()
        self._open: set[str] = set()
        self._unanswered: list[tuple[float, str, SimRequest]] = []
        """Heap of requests by deadline, whose order may differ from that of arrivals."""
        self._num_attained = 0
        self._num_missed = 0
        self._by_class: dict[str, Ended] = {}
        self._results: list[RequestResult] = []

    @property
    def is_complete(self) -> bool:
        """Return whether the stop rule ends the run."""
        if self._stop.to_the_end:
            is_lost = self._normalized_s > self._stop.limit_s * self._num
            return is_lost or len(self._results) == self._num
        num_known = self._num_attained + self._num_missed
        num_in_reach = self._num - self._num_missed
        return num_known == self._num or num_in_reach < self._stop.goal * self._num

    @property
    def outcome(self) -> RunResult:
        num_known = self._num_attained + self._num_missed
        return RunResult(
            num_known,
            self._num_attained,
            self.is_complete,
            {} if self._by_class.keys() <= {DEFAULT_CLASS} else dict(self._by_class),
            tuple(self._results),
            num_unsent=self._num_unsent,
        )

    def expect(self, record: SimRequest) -> None:
        self._open.add(record.request.request_id)
        if self._stop.to_the_end:
            self._coming.add(record.request.request_id)
        request = record.request
        heappush(self._unanswered, (request.deadline_s, request.request_id, record))

    def ended(self, record: SimRequest) -> None:
        attained = self._slo_rule(record)
        self._decide(record, attained)
        self._note(record, record.first_s, attained=attained, refused=False)

    def refused(self, record: SimRequest, now: float) -> None:
        self._decide(record, False)
        self._note(record, now, attained=False, refused=True)

    def give_up(self, num_turns: int) -> None:
        """Stop expecting the turns of a conversation that ended early."""
        self._num -= num_turns
        self._num_unsent += num_turns

    def pass_time(self, now: float) -> None:
        """Count requests as missed that were due before ``now`` and have no token yet."""
        if getattr(self._slo_rule, "ignores_ttft", False):
            return
        unanswered = self._unanswered
        while unanswered and (unanswered[0][2].num_emitted or unanswered[0][0] < now):
            _, _, record = heappop(unanswered)
            if not record.num_emitted:
                self._decide(record, False)

    def _decide(self, record: SimRequest, attained: bool) -> None:
        if record.request.request_id in self._open:
            self._open.remove(record.request.request_id)
            self._num_attained += attained
            self._num_missed += not attained
            so_far = self._by_class.get(record.request.slo_class, Ended())
            self._by_class[record.request.slo_class] = so_far + Ended(1, int(attained))

    def _note(self, record: SimRequest, answer_s: float, *, attained: bool, refused: bool) -> None:
        request = record.request
        if request.request_id not in self._coming:
            return
        self._coming.remove(request.request_id)
        after_s = max(0.0, record.last_s - record.first_s)
        result = RequestResult(
            request.arrival_s,
            request.num_prompt_tokens,
            record.num_output,
            answer_s - request.arrival_s,
            after_s / max(1, record.num_emitted - 1),
            Slo.steady_s(record.gaps_s),
            refused,
            attained,
            request.slo_class,
        )
        self._results.append(result)
        if not refused:
            self._normalized_s += result.normalized_s
