"""The step times compare the last steps with what was predicted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.batch import BatchResult
from macroserve.core.scheduler.step_times import WINDOW_S, StepTimes

SECONDS = st.floats(1e-4, 10.0)


def test_step_times_before_the_first_step_are_unknown() -> None:
    assert StepTimes().means_s() == (None, None)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1))
def test_step_times_lie_between_the_shortest_and_the_longest(steps) -> None:
    times = StepTimes()
    for predicted_s, elapsed_s in steps:
        times.observe(predicted_s, elapsed_s)
    measured_s, predicted_s = times.means_s()
    for mean_s, of_steps in zip((predicted_s, measured_s), zip(*steps, strict=True), strict=True):
        assert 0.999 * min(of_steps) <= mean_s <= 1.001 * max(of_steps)


def test_step_times_of_two_windows_ago_hardly_count() -> None:
    times = StepTimes()
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
