"""Late requests earn a share of the prefilled tokens, so that each is served some day."""

from collections.abc import Sequence as Many

from macroserve.core.scheduler.iteration import Pick
from macroserve.core.scheduler.running import Running
from macroserve.core.scheduler.waiting import WaitingQueue


def credit_late_requests(
    waiting: WaitingQueue, running: Running, picks: Many[Pick], now: float
) -> None:
    """Credit late requests with a share of the picked tokens, for as long as there are any."""
    begun = running.prefilling.values()
    if waiting.num_due_before(now) or any(seq.is_late(now) for seq in begun):
        late = [pick.num_tokens for pick in picks if pick.seq.is_late(now)]
        waiting.promise(sum([pick.num_tokens for pick in picks]), sum(late))
    else:
        waiting.promised_tokens = 0.0
