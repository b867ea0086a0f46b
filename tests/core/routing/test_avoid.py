"""Instances that one ingress cannot reach are avoided, and tried again by one request at a time."""

from macroserve.core.routing.attempts import Run
from macroserve.core.routing.avoid import BACKOFF, TRY_S, AvoidList

A, B = Run("a", 1), Run("b", 1)


def test_avoided_instance_after_its_time_is_tried_by_one_request() -> None:
    avoid = AvoidList()
    avoid.note(A, 0.0)
    assert avoid.names([A, B], BACKOFF.first_s - 0.1) == {"a"}
    assert avoid.names([A, B], BACKOFF.first_s) == set()
    assert avoid.names([A, B], BACKOFF.first_s + 0.1) == {"a"}
    assert avoid.names([A, B], BACKOFF.first_s + TRY_S) == set()


def test_avoided_time_doubles_with_each_failure_until_a_success() -> None:
    avoid, now, avoided_s = AvoidList(), 0.0, []
    for _ in range(6):
        avoid.note(A, now)
        after_s = next(s for s in range(1000) if not avoid.names([A, B], now + s))
        avoided_s.append(after_s)
        now += after_s
    assert avoided_s == [5, 10, 20, 40, 60, 60] and BACKOFF.max_s == 60
    avoid.note(A, now)
    avoid.clear(A)
    assert avoid.names([A, B], now) == set()


def test_avoid_list_excludes_new_incarnations_and_a_single_instance() -> None:
    avoid = AvoidList()
    avoid.note(A, 0.0)
    assert avoid.names([A], 0.0) == set()
    assert avoid.names([Run("a", 2), B], 0.0) == set()
