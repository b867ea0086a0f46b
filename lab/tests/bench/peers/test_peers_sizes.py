"""Attainment of short, medium and long requests."""

import pytest

from macroserve.bench.serve.record import Failure, RequestRecord
from macroserve.core.request import Slo
from macroserve_lab.bench.peers.sizes import attainment_by_size

SLO = Slo(ttft_s=2.0, tpot_s=0.1)


def record(num_prompt_tokens: int, is_late: bool, failure: Failure | None = None) -> RequestRecord:
    ttft_s = 3.0 if is_late else 1.0
    return RequestRecord(
        index=0,
        scheduled_s=0.0,
        sent_s=0.0,
        ended_s=ttft_s,
        num_prompt_tokens=num_prompt_tokens,
        num_planned_tokens=1,
        num_tokens=1,
        ttft_s=ttft_s,
        e2e_s=ttft_s,
        failure=failure,
    )


@pytest.mark.parametrize(
    ("lengths", "late", "expected"),
    [
        # Lengths are unordered, and all thirds have the same number of requests.
        ((900, 20, 400, 10, 800, 300), {900}, {"short": 1.0, "medium": 1.0, "long": 0.5}),
        ((900, 20, 400, 10, 800, 300), {10, 20}, {"short": 0.0, "medium": 1.0, "long": 1.0}),
        # Thirds are of requests, not of the range of lengths.
        ((1, 2, 3, 4, 5, 1000), {3}, {"short": 1.0, "medium": 0.5, "long": 1.0}),
        # The remainder of the division belongs to the longer thirds.
        ((1, 2, 3, 4), {3, 4}, {"short": 1.0, "medium": 1.0, "long": 0.0}),
        ((1, 2), set(), {"medium": 1.0, "long": 1.0}),
        ((), set(), {}),
    ],
)
def test_attainment_is_of_thirds_by_prompt_tokens(
    lengths: tuple[int, ...], late: set[int], expected: dict[str, float]
) -> None:
    records = [record(length, length in late) for length in lengths]
    assert attainment_by_size(records, SLO) == expected


def test_failed_request_is_missed_in_its_third() -> None:
    records = [record(10, False), record(20, False), record(30, False, Failure.TIMEOUT)]
    assert attainment_by_size(records, SLO) == {"short": 1.0, "medium": 1.0, "long": 0.0}
