"""Response lengths from the ones just seen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.instance.length import QUANTILE, UNSEEN_TOKENS, WINDOW, LengthPredictor


def seen(make_request, lengths):
    predictor = LengthPredictor()
    for length in lengths:
        predictor.observe(make_request("seen"), length)
    return predictor


@pytest.mark.parametrize(
    ("lengths", "limit", "emitted", "expected"),
    [
        ([], 1000, 0, UNSEEN_TOKENS),
        ([], 100, 0, 100),  # never beyond the request's limit
        ([], 1000, 900, 1000),
        ([10, 20, 30], 1000, 0, 20),
        ([10, 20, 30], 15, 0, 15),
        ([10, 20, 30], 1000, 10, 30),  # only longer ones tell
        ([10, 20, 30], 1000, 25, 30),
        ([10, 20, 30], 1000, 30, 30 + UNSEEN_TOKENS),
    ],
)
def test_prediction(make_request, lengths, limit, emitted, expected):
    predictor = seen(make_request, lengths)
    assert predictor.predict(make_request("r", new=limit), emitted) == expected


def test_what_an_earlier_instance_streamed_is_part_of_the_response(make_request):
    predictor = seen(make_request, [10, 20, 30])
    continued = make_request("r", new=1000, streamed=12)
    assert predictor.predict(continued) == 30 - 12
    predictor.observe(continued, 88)
    assert predictor.predict(make_request("s", new=1000), 50) == 100


@given(st.lists(st.integers(1, 50), max_size=WINDOW + 200), st.integers(0, 60))
def test_it_is_the_quantile_of_the_longer_ones_in_the_window(make_request, lengths, emitted):
    predictor = seen(make_request, lengths)
    predicted = predictor.predict(make_request("r", new=10_000), emitted)
    longer = sorted(n for n in lengths[-WINDOW:] if n > emitted)
    assert predicted > emitted
    if longer:
        assert predicted == longer[int(QUANTILE * len(longer))]
