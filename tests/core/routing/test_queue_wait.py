"""A queue takes a predicted time, and a refused client retries afterwards."""

import pytest

from macroserve.core.routing.queue_wait import (
    MAX_RETRY_S,
    NO_INSTANCE_RETRY_S,
    cell_queue_wait_s,
    least_wait_s,
    least_waits,
    queue_wait_s,
    retry_after_s,
    share_ahead,
)
from macroserve.core.status import UNHEARD, InstanceStatus, InstanceView, Pool


def view(
    waiting_tokens: int = 0, in_flight_prefill_s: float = 0.0, pool: Pool = Pool.LP, **status
) -> InstanceView:
    told = InstanceStatus(
        seq=1,
        waiting_tokens=waiting_tokens,
        prefill_s_per_token=0.001,
        queue_s_per_token=0.004,
        **status,
    )
    return InstanceView("a", pool, told, 0.0, 64, in_flight_prefill_s=in_flight_prefill_s)


def test_queue_wait_counts_waiting_tokens_and_those_in_flight() -> None:
    assert queue_wait_s(view()) == 0.0
    assert queue_wait_s(view(1000)) == pytest.approx(4.0)
    assert queue_wait_s(view(1000, in_flight_prefill_s=0.5)) == pytest.approx(6.0)


BATCH = view(waiting_prefill_s=9.0, yielding=((30.0, 6.0), (5.0, 2.0)))
"""A second of prefills is of requests with a target of 1 s, or under way."""


@pytest.mark.parametrize(
    ("views", "waits_s"),
    [
        ([], [None, None, None, None]),
        ([BATCH], [1.0, 3.0, 3.0, 9.0]),
        ([view(in_flight_prefill_s=0.5, waiting_prefill_s=1.5)], [2.0, 2.0, 2.0, 2.0]),
        ([BATCH, view(waiting_prefill_s=2.0)], [1.0, 2.0, 2.0, 2.0]),
        ([BATCH, view(waiting_prefill_s=4.0, yielding=((7.0, 3.5),))], [0.5, 0.5, 3.0, 4.0]),
        # A prefill takes a whole batch at least, so that parts may be more than the sum.
        ([view(waiting_prefill_s=1.0, yielding=((7.0, 2.0),))], [0.0, 0.0, 1.0, 1.0]),
    ],
)
def test_least_wait_counts_what_goes_before_a_request_with_the_target(views, waits_s) -> None:
    waits = least_waits(views)
    assert [least_wait_s(waits, ttft_s) for ttft_s in (1.0, 5.0, 29.0, 30.0)] == waits_s


@pytest.mark.parametrize(
    ("views", "share"), [([], 1.0), ([view()], 1.0), ([view(waiting_prefill_s=2.0)], 1.0)]
)
def test_share_ahead_is_whole_where_all_have_one_target(views, share) -> None:
    assert share_ahead(least_waits(views), 1.0) == share


def test_share_ahead_is_that_of_the_prefills_with_targets_as_short() -> None:
    waits = least_waits([BATCH])
    shares = [share_ahead(waits, ttft_s) for ttft_s in (1.0, 5.0, 30.0)]
    assert shares == pytest.approx([1 / 9, 3 / 9, 1.0])


def test_queue_wait_of_an_instance_without_a_pace_is_zero() -> None:
    new = InstanceView("a", Pool.LP, InstanceStatus(seq=1, waiting_tokens=9), 0.0, 64)
    assert queue_wait_s(new) == 0.0


@pytest.mark.parametrize(
    ("views", "wait_s"),
    [
        ([], None),
        ([InstanceView("a", Pool.LP, UNHEARD, 0.0, 64)], None),
        ([view(1000, draining=True)], None),
        ([view(1000), view(500)], 2.0),
        ([view(1000), view(500, draining=True)], 4.0),
        # LP instances hand what would be late to the HP pool.
        ([view(0), view(1000, pool=Pool.HP)], 4.0),
        ([view(2000), view(1000, pool=Pool.HP)], 8.0),
    ],
)
def test_cell_queue_wait_is_the_least_of_the_slowest_pool(views, wait_s) -> None:
    assert cell_queue_wait_s(views) == (None if wait_s is None else pytest.approx(wait_s))


@pytest.mark.parametrize(
    ("wait_s", "chance", "retry_s"),
    [
        (0.0, 0.0, 1),
        (300.0, 0.0, 1),
        (340.0, 0.0, 40),
        (340.0, 0.5, 50),
        (1e9, 0.0, MAX_RETRY_S),
        (None, 0.0, NO_INSTANCE_RETRY_S),
    ],
)
def test_retry_after_a_refusal_is_when_the_queue_is_within_its_bound(
    wait_s, chance: float, retry_s: int
) -> None:
    assert retry_after_s(wait_s, 300.0, chance) == retry_s
