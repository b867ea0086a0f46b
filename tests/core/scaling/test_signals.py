"""Signals are derived from alerts, the reported load and the cells' views."""

import pytest

from macroserve.core.scaling.autoscale import START_S, CapacityEstimate, LoadSignals
from macroserve.core.scaling.load import LoadBucket, LoadReport
from macroserve.core.scaling.signals import (
    ATTAINMENT_LOW,
    QUEUES_LATE,
    STALE_S,
    is_idle,
    load_signals,
    response_s,
    uncounted,
)
from macroserve.core.status import CellView

NEED = CapacityEstimate(1.0, 2, 2)


def signals(**fields):
    given = {
        "ready": 2,
        "firing": (),
        "alerts_missing": None,
        "unknown": None,
        "idle": False,
        "below_target": False,
        "need": NEED,
    }
    return load_signals(**{**given, **fields})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"need": NEED}),
        ({"firing": {"Other"}}, {"need": NEED}),
        ({"firing": {QUEUES_LATE}}, {"need": NEED, "alert": QUEUES_LATE}),
        ({"firing": {QUEUES_LATE, ATTAINMENT_LOW}}, {"need": NEED, "alert": ATTAINMENT_LOW}),
        ({"idle": True}, {"idle": True}),
        ({"unknown": "Why."}, {"unknown": "Why."}),
        ({"start_s": 9.0, "response_s": 7.0}, {"need": NEED, "start_s": 9.0, "response_s": 7.0}),
    ],
)
def test_signals_of_a_case_are_as_listed(given, expected) -> None:
    assert signals(**given) == LoadSignals(ready=2, **{"start_s": START_S, **expected})


def load(*buckets: tuple[float, int, int]) -> LoadReport:
    """Return a load of (age in seconds, requests, output tokens)."""
    return LoadReport(10.0, tuple(LoadBucket(age, num, 0, out) for age, num, out in buckets))


def test_load_is_uncounted_without_buckets_and_when_it_ended_long_ago() -> None:
    assert uncounted(load()) and uncounted(load((STALE_S + 1, 5, 5)))
    assert uncounted(load((STALE_S, 5, 5))) is None


def test_load_is_idle_without_requests_that_came_wait_or_run() -> None:
    silent = load((0.0, 0, 0))
    assert is_idle(silent, [CellView("cell-0", ())])
    assert not is_idle(silent, [CellView("cell-0", (), num_waiting=1)])
    assert not is_idle(silent, [CellView("cell-0", (), num_running=1)])
    assert not is_idle(load((0.0, 0, 0), (10.0, 1, 5)), [CellView("cell-0", ())])


def test_responses_take_their_mean_tokens_at_the_target() -> None:
    assert response_s(load((0.0, 3, 300), (10.0, 1, 500)), 0.1) == pytest.approx(20.0)
    assert response_s(load((0.0, 0, 0)), 0.1) == 0.0
