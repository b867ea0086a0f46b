"""EconoServe orders queued prompts and responses by three factors, one after the other (section
3.4): the deadline of the whole response, the memory that they occupy, and their length.

Tasks are taken in this order. After the first that does not fit, a binary search finds the longest
one that does, so that little of the memory and of the forward size is left over.
"""

from bisect import bisect_right
from collections.abc import Iterable

from macroserve.core.scheduler.config import OVERDUE_TTFTS
from macroserve.core.scheduler.sequence import Sequence
from macroserve.core.strategy import Ordering, Strategy

RANGES_S = (0.2, 0.5, 2.0)
"""Bounds in seconds; deadlines between two of them are equally urgent (section 3.4)."""

RANGE_TOKENS = 128
"""Tokens of a range of occupied memory; those within one are ordered by length. The paper's example
has ranges of so many tokens for lengths, and names none for memory."""


def by_urgency(strategy: Strategy) -> bool:
    """Return whether queued tasks are ordered by the factors, not by their arrival."""
    return strategy.ordering is Ordering.EDF


def jct_target_s(seq: Sequence) -> float:
    """Return the target for the time from a request's arrival to its last token, seconds.

    The paper sets it to SLO-scale x (t_p + t_g x l_g), for the mean times of a prompt and of a
    token, and the response's length (section 4.1). The targets for TTFT and TPOT are these times
    with their scale; the length is the predicted one.
    """
    return seq.request.slo.ttft_s + seq.tpot_s * seq.predicted_tokens


def place(seq: Sequence, num_held: int, length: int, now: float) -> tuple[int, int, int, int]:
    """Return the place of a queued task; the least goes first, and overdue ones before all others.

    num_held: tokens that its memory has room for.
    length: tokens of the prompt, or those that the response is expected to have still.
    """
    left_s = seq.arrival_s + jct_target_s(seq) - now
    urgency = -1 if is_overdue(seq, now) else bisect_right(RANGES_S, left_s)
    return urgency, -(num_held // RANGE_TOKENS), -length, seq.ordinal


def is_overdue(seq: Sequence, now: float) -> bool:
    """Return whether a task has waited so long that none may pass it: twice its target.

    The paper has no such bound; without one, a long task waits for as long as shorter ones come.
    """
    return now - seq.arrival_s > OVERDUE_TTFTS * jct_target_s(seq)


class ClosestFit:
    """The tasks are kept by size, to find the longest that fits.

    tasks: size of each, and the task, in order.
    """

    def __init__(self, tasks: Iterable[tuple[int, Sequence]]) -> None:
        entries = [(size, -index, seq) for index, (size, seq) in enumerate(tasks)]
        entries.sort()
        self._sizes = [size for size, _, _ in entries]
        self._seqs = [seq for _, _, seq in entries]

    def take(self, limit: int) -> Sequence | None:
        """Remove and return the longest task of at most ``limit``, of equal ones the first in
        order; None if there is none."""
        index = bisect_right(self._sizes, limit) - 1
        if index < 0:
            return None
        del self._sizes[index]
        return self._seqs.pop(index)
