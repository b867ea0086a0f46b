"""The phase table decides between prefill and decode."""

from itertools import product

import pytest

from macroserve.core.scheduler.batching.ecoserve import next_phase
from macroserve.core.status import Phase

ANY = (False, True)


@pytest.mark.parametrize(
    ("current", "can_prefill", "can_decode", "paid", "overdue", "spent", "expected"),
    [
        (Phase.DECODE, False, False, ANY, ANY, ANY, Phase.IDLE),
        (Phase.PREFILL, False, False, ANY, ANY, ANY, Phase.IDLE),
        (Phase.PREFILL, False, True, ANY, ANY, ANY, Phase.DECODE),
        (Phase.IDLE, True, False, ANY, ANY, ANY, Phase.PREFILL),
        (Phase.DECODE, True, True, True, ANY, False, Phase.PREFILL),
        (Phase.PREFILL, True, True, True, ANY, False, Phase.PREFILL),
        (Phase.PREFILL, True, True, True, ANY, True, Phase.DECODE),
        (Phase.DECODE, True, True, False, False, ANY, Phase.DECODE),
        (Phase.PREFILL, True, True, False, False, ANY, Phase.DECODE),
        (Phase.DECODE, True, True, False, True, ANY, Phase.PREFILL),
        # An overdue prompt goes only after a decode batch: no decode starves either.
        (Phase.PREFILL, True, True, False, True, ANY, Phase.DECODE),
    ],
)
def test_next_phase_by_slack_and_waits_follows_the_table(
    current, can_prefill, can_decode, paid, overdue, spent, expected
):
    choices = [value if isinstance(value, tuple) else (value,) for value in (paid, overdue, spent)]
    for paid_, overdue_, spent_ in product(*choices):
        phase, reason = next_phase(
            current,
            can_prefill=can_prefill,
            can_decode=can_decode,
            paid=paid_,
            overdue=overdue_,
            spent=spent_,
        )
        assert phase is expected and reason
