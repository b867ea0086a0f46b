"""The prefill pace measures how fast a queue gets shorter."""

import pytest

from macroserve.core.batch import Batch, BatchResult
from macroserve.core.request import Request, Slo
from macroserve.core.scheduler.prefill_pace import WINDOW_S, PrefillPace


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
