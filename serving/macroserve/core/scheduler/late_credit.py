"""Late requests earn a share of the prefilled tokens, so that each is served some day."""

from collections.abc import Sequence as Many

from macroserve.core.scheduler.iteration import Pick
from macroserve.core.scheduler.running import Running
from macroserve.core.scheduler.waiting import WaitingQueue

LATE_SHARE = 0.02
"""Share of the tokens prefilled while late requests wait that is reserved for them."""

OVERDUE_SHARE = 0.5
"""That share while one of them is overdue. As much is left for requests that can be in time."""


def credit_late_requests(
    waiting: WaitingQueue,
    running: Running,
    picks: Many[Pick],
    now: float,
    overdue_after_s: float | None = None,
) -> None:
    """Credit late requests with a share of the picked tokens, for as long as there are any.

    overdue_after_s: time since its arrival after which one is overdue, seconds; None: never.
    """
    late = [seq for seq in running.prefilling.values() if seq.is_late(now)]
    late += waiting.by_deadline.seqs[: min(1, waiting.num_due_before(now))]
    if not late:
        waiting.promised_tokens = 0.0
        return
    longest_s = now - min([seq.arrival_s for seq in late])
    is_overdue = overdue_after_s is not None and longest_s >= overdue_after_s
    num_tokens = sum([pick.num_tokens for pick in picks])
    num_late_tokens = sum([pick.num_tokens for pick in picks if pick.seq.is_late(now)])
    earned = (OVERDUE_SHARE if is_overdue else LATE_SHARE) * num_tokens - num_late_tokens
    waiting.promised_tokens = max(0.0, waiting.promised_tokens + earned)
