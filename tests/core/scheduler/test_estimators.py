"""Response lengths, arrivals and times are estimated from the recent past."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.batch import Batch, BatchResult
from macroserve.core.request import Request, Slo
from macroserve.core.scheduler.estimators import (
    NUM_NEIGHBORS,
    QUANTILE,
    TARGETS_S,
    UNSEEN_TOKENS,
    WINDOW,
    WINDOW_S,
    Inflow,
    LengthPredictor,
    PrefillPace,
    PromptRate,
    StepTimeMeans,
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


@pytest.mark.parametrize(
    ("window_s", "rate"),
    [(0.5, 0.0), (1.0, 300.0), (5.0, 80.0), (59.9, 400 / 59.9), (1e9, 400 / TARGETS_S)],
)
def test_rate_of_prompts_is_their_mean_over_a_window(window_s, rate):
    prompts = PromptRate()
    for num_tokens, at_s in ((70, 0.0), (100, 97.0), (300, 99.0)):
        prompts.add(num_tokens, at_s)
    assert prompts.tokens_per_s(window_s, 100.0) == pytest.approx(rate)


def test_inflow_of_a_steady_stream_approaches_its_rate():
    inflow = Inflow()
    for index in range(2000):
        inflow.add(50, 1.0, 0.1 * index)
    assert inflow.coming_tokens(200.0) == pytest.approx(500.0, rel=0.02)


def test_inflow_without_arrivals_fades():
    inflow = Inflow()
    assert inflow.coming_tokens(5.0) == 0.0
    inflow.add(300, 1.0, 5.0)
    assert inflow.coming_tokens(5.0) == pytest.approx(300 / WINDOW_S)
    assert inflow.coming_tokens(5.0 + 10 * WINDOW_S) < 0.001


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 60)), min_size=1))
def test_inflow_of_any_stream_is_at_most_all_tokens_per_window(stream):
    inflow, now = Inflow(), 0.0
    for num_tokens, gap_s in stream:
        now += gap_s
        inflow.add(num_tokens, 1.0, now)
    total = sum(num_tokens for num_tokens, _ in stream)
    assert 0 < inflow.coming_tokens(now) <= total / WINDOW_S * (1 + 1e-9)


@given(
    st.lists(st.tuples(st.sampled_from([0.5, 1.0, 5.0, 30.0]), st.floats(0, 40))),
    st.floats(0, 80),
)
def test_inflow_tells_the_tightest_target_of_the_last_minute(stream, later_s):
    inflow, now, arrived = Inflow(), 0.0, []
    for ttft_s, gap_s in stream:
        now += gap_s
        inflow.add(100, ttft_s, now)
        arrived.append((ttft_s, now))
    now += later_s
    recent = [ttft_s for ttft_s, at_s in arrived if at_s >= now - TARGETS_S]
    assert inflow.min_ttft_s(now) == min(recent, default=inf)


def test_inflow_of_two_classes_counts_each_for_its_own_target():
    inflow = Inflow()
    inflow.add(300, 1.0, 5.0)
    inflow.add(300, 20.0, 5.0)
    assert inflow.coming_tokens(5.0) == pytest.approx(300 * (1.0 + 20.0) / WINDOW_S)


def test_prefill_pace_without_a_measurement_is_the_prediction() -> None:
    assert PrefillPace().s_per_token(0.002) == pytest.approx(0.002)


def test_prefill_pace_follows_recent_measurements() -> None:
    pace = PrefillPace()
    for _ in range(100):
        pace.observe(100, 1.0)
    assert pace.s_per_token(0.002) == pytest.approx(0.01, rel=0.5)
    slow = pace.s_per_token(0.002)
    for _ in range(int(WINDOW_S)):
        pace.observe(1000, 1.0)
    assert pace.s_per_token(0.002) < slow / 3


def test_prefill_pace_of_a_blocked_queue_is_finite() -> None:
    pace = PrefillPace()
    for _ in range(1000):
        pace.observe(0, 1.0)
    assert 0.01 < pace.s_per_token(0.001) < 0.1


@pytest.mark.parametrize(("num_requests", "is_slower"), [(1, False), (64, True)])
def test_prefill_pace_counts_only_iterations_with_a_queue(
    make_scheduler, num_requests, is_slower
) -> None:
    """A single request that decodes for long tells nothing about how fast a queue gets shorter."""
    scheduler = make_scheduler("vllm", num_blocks=64)
    for index in range(num_requests):
        scheduler.add_request(Request(f"r{index}", 0.0, 64, 64, Slo(1.0, 0.1)), 0.0)
    now = 0.0
    for _ in range(50):
        batch = scheduler.schedule(now)
        now += 1.0
        scheduler.update(batch, result_of(batch), now)
    status = scheduler.status(now)
    assert (status.queue_s_per_token > 3 * status.prefill_s_per_token) is is_slower


def result_of(batch: Batch) -> BatchResult:
    """Return a result in which decodes take a second."""
    return BatchResult(
        1.0 if batch.decodes else batch.predicted_s,
        {p.request_id: p.num_tokens for p in batch.prefills},
        {p.request_id: 1 for p in batch.prefills},
        decoded=bool(batch.decodes),
    )


SECONDS = st.floats(1e-4, 10.0)


def test_step_times_before_the_first_step_are_unknown() -> None:
    assert StepTimeMeans().means_s() == (None, None)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1))
def test_step_times_lie_between_the_shortest_and_the_longest(steps) -> None:
    times = StepTimeMeans()
    for predicted_s, elapsed_s in steps:
        times.observe(predicted_s, elapsed_s)
    measured_s, predicted_s = times.means_s()
    for mean_s, of_steps in zip((predicted_s, measured_s), zip(*steps, strict=True), strict=True):
        assert 0.999 * min(of_steps) <= mean_s <= 1.001 * max(of_steps)


def test_step_times_of_two_windows_ago_hardly_count() -> None:
    times = StepTimeMeans()
    for _ in range(round(WINDOW_S / 0.1)):
        times.observe(0.2, 0.1)
    assert times.means_s() == (pytest.approx(0.1), pytest.approx(0.2))
    for _ in range(round(3 * WINDOW_S / 0.02)):
        times.observe(0.03, 0.02)
    assert times.means_s() == (pytest.approx(0.02, rel=0.1), pytest.approx(0.03, rel=0.1))


def run_step(scheduler, now, elapsed_s):
    batch = scheduler.schedule(now)
    prefilled = {prefill.request_id: prefill.num_tokens for prefill in batch.prefills}
    emitted = dict.fromkeys(prefilled, 1)
    result = BatchResult(elapsed_s, prefilled, emitted, decoded=int(bool(batch.decodes)))
    scheduler.update(batch, result, now + elapsed_s)
    return batch


def test_status_has_the_measured_and_the_predicted_step(make_scheduler, make_request) -> None:
    scheduler = make_scheduler("vllm")
    assert scheduler.status(0.0).step_s is scheduler.status(0.0).predicted_step_s is None
    scheduler.add_request(make_request("a"), 0.0)
    first = run_step(scheduler, 0.0, 0.5)
    status = scheduler.status(0.5)
    assert (status.step_s, status.predicted_step_s) == (0.5, first.predicted_s)
    second = run_step(scheduler, 0.5, 0.25)
    status = scheduler.status(0.75)
    assert status.step_s == pytest.approx(0.375, rel=0.01)
    assert status.predicted_step_s == pytest.approx(
        (first.predicted_s + second.predicted_s) / 2, rel=0.01
    )


def test_status_of_a_batch_that_did_not_run_as_planned_keeps_the_step(
    make_scheduler, make_request
) -> None:
    scheduler = make_scheduler("vllm")
    scheduler.add_request(make_request("a"), 0.0)
    scheduler.update(scheduler.schedule(0.0), BatchResult(9.0, {"a": 7}), 9.0)
    assert scheduler.status(9.0).step_s is None


def test_status_has_the_time_since_the_phase_began(make_scheduler, make_request) -> None:
    scheduler = make_scheduler("ecoserve")
    scheduler.add_request(make_request("a"), 1.0)
    run_step(scheduler, 1.0, 0.5)
    assert (scheduler.status(1.5).phase, scheduler.status(1.5).phase_s) == ("prefill", 0.5)
    run_step(scheduler, 1.5, 0.1)
    run_step(scheduler, 1.6, 0.1)
    status = scheduler.status(3.5)
    assert (status.phase, status.phase_s) == ("decode", 2.0), "since the first decode"


def test_status_counts_the_blocks_of_hidden_states(make_scheduler, make_request) -> None:
    """Sixteen tokens of keys and values take a block, and so do 32 hidden states."""
    scheduler = make_scheduler("aptserve", num_blocks=12, hidden_states_per_block=32)
    now = 0.0
    for name in ("a", "b"):
        scheduler.add_request(make_request(name, prompt=100, new=20), now)
    num_hidden = []
    for _ in range(10):
        run_step(scheduler, now, 0.1)
        now += 0.1
        num_hidden.append(
            (scheduler.running.decoding.num_hidden_tokens, scheduler.status(now).hidden_blocks)
        )
    assert any(num_tokens for num_tokens, _ in num_hidden), "memory is short"
    assert all(num_blocks == -(-num_tokens // 32) for num_tokens, num_blocks in num_hidden)
