"""Response lengths are predicted from those of similar prompts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.scheduler.estimators import (
    NUM_NEIGHBORS,
    QUANTILE,
    UNSEEN_TOKENS,
    WINDOW,
    LengthPredictor,
)


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
def test_length_prediction_is_a_quantile_of_similar_prompts(
    make_request, lengths, limit, emitted, expected
):
    predictor = seen(make_request, lengths)
    assert predictor.predict(make_request("r", new=limit), emitted) == expected


def test_length_prediction_counts_tokens_streamed_earlier(make_request):
    predictor = seen(make_request, [10, 20, 30])
    continued = make_request("r", new=1000, streamed=12)
    assert predictor.predict(continued) == 30 - 12
    predictor.observe(continued, 88)
    assert predictor.predict(make_request("s", new=1000), 50) == 100


@pytest.mark.parametrize(
    ("expected", "limit", "emitted", "answer"),
    [
        (70, 1000, 0, 70),
        (70, 1000, 69, 70),
        (70, 60, 0, 60),  # never beyond the request's limit
        (70, 1000, 70, 90),  # it was wrong, and the others tell
        (5, 1000, 10, 90),
    ],
)
def test_length_prediction_follows_the_request_until_it_is_wrong(
    make_request, expected, limit, emitted, answer
):
    predictor = seen(make_request, [10, 20, 90])
    told = replace(make_request("r", new=limit), expected_tokens=expected)
    assert predictor.predict(told, emitted) == answer


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 50)), max_size=100),
    st.integers(1, 60),
    st.integers(0, 60),
)
def test_length_prediction_is_the_quantile_of_longer_neighbors(
    make_request, seen_before, prompt, emitted
):
    predictor = LengthPredictor()
    for before, length in seen_before:
        predictor.observe(make_request("seen", prompt=before), length)
    predicted = predictor.predict(make_request("r", prompt=prompt, new=10_000), emitted)
    assert predicted > emitted
    ordered = sorted((before, index) for index, (before, _) in enumerate(seen_before))
    middle = sum(before <= prompt for before, _ in ordered)
    start = max(0, min(middle - NUM_NEIGHBORS // 2, len(ordered) - NUM_NEIGHBORS))
    near = [seen_before[index][1] for _, index in ordered[start : start + NUM_NEIGHBORS]]
    everyone = [length for _, length in seen_before]
    for known in (near, everyone):
        if longer := sorted(length for length in known if length > emitted):
            assert predicted == longer[int(QUANTILE * len(longer))]
            break


@pytest.mark.parametrize(
    ("lengths", "limit", "streamed", "sure"),
    [
        ([], 1000, 0, 0),
        (range(10, 90, 10), 1000, 0, 0),  # of eight, none can be left out
        (range(10, 100, 10), 1000, 0, 10),
        (range(10, 330, 10), 1000, 0, 30),
        (range(10, 330, 10), 20, 0, 20),  # never beyond the request's limit
        (range(10, 330, 10), 1000, 12, 30 - 12),
        (range(10, 330, 10), 1000, 40, 0),
    ],
)
def test_sure_length_is_reached_by_all_but_a_share_of_neighbors(
    make_request, lengths, limit, streamed, sure
):
    predictor = seen(make_request, lengths)
    assert predictor.at_least(make_request("r", new=limit, streamed=streamed)) == sure


def test_length_prediction_prefers_similar_prompts(make_request):
    predictor = LengthPredictor()
    for index in range(200):
        predictor.observe(make_request("asks", prompt=40 + index % 10), 300)
        predictor.observe(make_request("sums up", prompt=3000 + 7 * index), 20)
    assert predictor.predict(make_request("a", prompt=47, new=1000)) == 300
    assert predictor.predict(make_request("b", prompt=3500, new=1000)) == 20
    assert predictor.predict(make_request("b", prompt=3500, new=1000), 25) == 300


def test_length_predictor_forgets_responses_before_its_window(make_request):
    predictor = LengthPredictor()
    for length in (*[500] * 100, *[20] * WINDOW):
        predictor.observe(make_request("seen"), length)
    asked = make_request("r", new=1000)
    assert predictor.predict(asked, 100) == 100 + UNSEEN_TOKENS
