"""Delays between tries follow a clock that the test moves."""

import pytest

from macroserve.core.backoff import Backoff, Retries


@pytest.mark.parametrize(
    ("num_failures", "delay_s"), [(0, 0), (1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (10**6, 60)]
)
def test_backoff_after_each_failure_doubles_up_to_the_maximum(
    num_failures: int, delay_s: int
) -> None:
    assert Backoff(1.0, 60.0).delay_s(num_failures) == delay_s


def test_retries_of_a_failed_name_wait_and_others_do_not() -> None:
    retries = Retries(Backoff(1.0, 60.0))
    assert retries.failed("a", "no memory", now=10.0).retry_in_s == 1.0
    assert not retries.may_try("a", 10.9) and retries.may_try("a", 11.0)
    assert retries.may_try("b", 10.0)
    assert retries.failed("a", "no memory", now=11.0).retry_in_s == 2.0
    assert not retries.may_try("a", 12.9) and retries.may_try("a", 13.0)


def test_failure_with_another_cause_or_after_a_success_is_new() -> None:
    retries = Retries(Backoff())
    causes = ["no memory", "no memory", "no disk", "no memory"]
    assert [retries.failed("a", c, 0.0).is_new for c in causes] == [True, False, True, True]
    retries.succeeded("a")
    assert not retries.has_failed("a") and retries.may_try("a", 0.0)
    failure = retries.failed("a", "no memory", 0.0)
    assert failure.is_new and failure.num_failures == 1
