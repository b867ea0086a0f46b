"""Instances that one ingress cannot reach are avoided, and tried again by one request at a time."""

from macroserve.core.routing.attempts import Run
from macroserve.core.routing.avoid import FIRST_S, LONGEST_S, TRY_S, AvoidList

A, B = Run("a", 1), Run("b", 1)


def test_an_instance_is_avoided_until_one_request_may_try_it() -> None:
    avoid = AvoidList()
    avoid.note(A, 0.0)
    assert avoid.names([A, B], FIRST_S - 0.1) == {"a"}
    assert avoid.names([A, B], FIRST_S) == set()
    assert avoid.names([A, B], FIRST_S + 0.1) == {"a"}
    assert avoid.names([A, B], FIRST_S + TRY_S) == set()


def test_each_failure_doubles_the_time_and_a_success_ends_it() -> None:
    avoid, now, avoided_s = AvoidList(), 0.0, []
    for _ in range(6):
        avoid.note(A, now)
        after_s = next(s for s in range(1000) if not avoid.names([A, B], now + s))
        avoided_s.append(after_s)
        now += after_s
    assert avoided_s == [5, 10, 20, 40, 60, 60] and LONGEST_S == 60
    avoid.note(A, now)
    avoid.clear(A)
    assert avoid.names([A, B], now) == set()


def test_another_incarnation_and_a_lone_instance_are_not_avoided() -> None:
    avoid = AvoidList()
    avoid.note(A, 0.0)
    assert avoid.names([A], 0.0) == set()
    assert avoid.names([Run("a", 2), B], 0.0) == set()
