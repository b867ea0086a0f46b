"""Prefill or decode: the phase table, and the slack that pays."""

from itertools import product
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.instance.phase import next_phase, percentile_10, saved_tpot_p10_s
from macroserve.core.request import Slo
from macroserve.core.views import Phase

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
def test_next_phase(current, can_prefill, can_decode, paid, overdue, spent, expected):
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


@pytest.mark.parametrize(
    ("values", "expected"),
    [([7.0], 7.0), (list(range(10)), 0), (list(range(11)), 1), (list(range(20)), 1)],
)
def test_percentile_is_the_nearest_rank(values, expected):
    assert percentile_10(values[::-1]) == expected


def decoding(make_sequence, saved_s, now, left=10):
    """A sequence that has saved that much at ``now`` and has ``left`` tokens to go."""
    seq = make_sequence(slo=Slo(1.0, 0.1), new=2 + left)
    seq.emit(2, now=0.0)
    seq.paid_until_s = now + saved_s
    return seq


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ([], inf),
        ([0.4], 0.4),
        ([0.5] * 9 + [0.1], 0.1),
        ([0.5] * 10 + [0.1], 0.5),  # one of eleven does not count
        ([0.5, -0.3], -0.3),  # it can catch up: ten steps save 0.05 s each
        ([0.5, -0.6], 0.5),  # it cannot, and is left out
        ([-0.6], inf),
    ],
)
def test_saved_tpot(make_sequence, saved, expected):
    sequences = [decoding(make_sequence, s, now=30.0) for s in saved]
    assert saved_tpot_p10_s(sequences, 30.0, step_s=0.05) == pytest.approx(expected)


@given(st.lists(st.floats(0, 5), min_size=1, max_size=40), st.floats(0, 3))
def test_saved_tpot_shrinks_as_time_passes(make_sequence, saved, later_s):
    sequences = [decoding(make_sequence, s, now=10.0, left=10_000) for s in saved]
    before, after = (saved_tpot_p10_s(sequences, now, 0.05) for now in (10.0, 10.0 + later_s))
    assert after == pytest.approx(before - later_s)
