"""Figures are computed from records."""

from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.bench.serve.metrics import Distribution, FailureCount, queue_growth, summarize
from macroserve.bench.serve.record import Failure, RequestRecord
from macroserve.core.request import Slo
from macroserve.core.slo_class import SloClass

SLO = Slo(ttft_s=1.0, tpot_s=0.1)

GOOD = RequestRecord(
    index=0,
    scheduled_s=1.0,
    sent_s=1.01,
    ended_s=2.0,
    num_prompt_tokens=30,
    num_planned_tokens=5,
    num_tokens=5,
    http_status=200,
    ttft_s=0.5,
    e2e_s=0.9,
    gaps_s=array("f", [0.25, 0.05, 0.05, 0.05]),
)
SLOW_START = replace(GOOD, ttft_s=1.001, e2e_s=1.2)
SLOW_TOKENS = replace(GOOD, e2e_s=0.9001)
ONE_TOKEN = replace(GOOD, num_tokens=1, e2e_s=0.5, gaps_s=())
FAILED = replace(GOOD, failure=Failure.HTTP, http_status=500, detail="boom", gaps_s=(9.0,))
INTERRUPTED = replace(GOOD, failure=Failure.INTERRUPTED)


@pytest.mark.parametrize(
    ("record", "meets_ttft", "meets_tpot"),
    [
        (GOOD, True, True),
        (SLOW_START, False, True),
        (SLOW_TOKENS, True, False),
        (ONE_TOKEN, True, True),
        (FAILED, False, False),
        (INTERRUPTED, False, False),
    ],
)
def test_record_meets_each_target_on_its_own(
    record: RequestRecord, meets_ttft: bool, meets_tpot: bool
) -> None:
    assert record.meets_ttft(SLO) is meets_ttft
    assert record.meets_tpot(SLO) is meets_tpot
    assert record.meets(SLO) is (meets_ttft and meets_tpot)


@pytest.mark.parametrize(("num_slow", "meets"), [(1, True), (2, False)])
def test_tbt_target_forgives_one_gap_in_a_hundred(num_slow: int, meets: bool) -> None:
    gaps_s = array("f", [0.3] * num_slow + [0.05] * (100 - num_slow))
    record = replace(GOOD, num_tokens=101, e2e_s=0.5 + sum(gaps_s), gaps_s=gaps_s)
    steady = replace(SLO, tbt_s=0.2)
    assert record.meets(SLO) and record.meets_tbt(SLO)
    assert record.meets(steady) is record.meets_tbt(steady) is meets
    assert summarize([record], steady).tbt_attainment == float(meets)
    assert not replace(FAILED, gaps_s=()).meets_tbt(steady)


def test_tpot_is_the_mean_after_the_first_token() -> None:
    assert GOOD.tpot_s == pytest.approx((0.9 - 0.5) / 4)
    assert ONE_TOKEN.tpot_s is None
    assert (GOOD.max_tbt_s, ONE_TOKEN.max_tbt_s) == (0.25, None)
    assert GOOD.send_lag_s == pytest.approx(0.01)


def test_summary_of_a_mixed_run_counts_each_outcome() -> None:
    records = [
        GOOD,
        SLOW_START,
        SLOW_TOKENS,
        replace(ONE_TOKEN, scheduled_s=4.0, sent_s=4.0),
        FAILED,
        replace(FAILED, ended_s=8.0, detail="later words"),
        replace(FAILED, failure=Failure.TIMEOUT, http_status=None, detail="late"),
        INTERRUPTED,
    ]
    summary = summarize(records, SLO)
    assert summary.num_sent == 8
    assert (summary.num_succeeded, summary.num_failed, summary.num_interrupted) == (4, 3, 1)
    assert summary.num_short == 1
    assert summary.failures == (
        FailureCount(Failure.HTTP, 500, 2, "boom"),
        FailureCount(Failure.TIMEOUT, None, 1, "late"),
    )
    assert summary.elapsed_s == 8.0
    assert summary.offered_rate == 8 / 4.0
    assert summary.request_throughput == 4 / 8.0
    assert summary.prompt_token_throughput == 4 * 30 / 8.0
    assert summary.output_token_throughput == (5 + 5 + 5 + 1) / 8.0
    assert summary.attainment == 2 / 7
    assert summary.ttft_attainment == 3 / 7
    assert summary.tpot_attainment == 3 / 7
    assert summary.goodput == 2 / 8.0
    assert summary.ttft is not None and summary.ttft.max == 1.001
    assert summary.tpot is not None and summary.tpot.p50 == pytest.approx(0.1)
    assert summary.tbt is not None and summary.tbt.mean == pytest.approx(0.1)
    assert summary.send_lag is not None and summary.send_lag.max == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("num_cached", "share"),
    [((None, None), None), ((0, 0), 0.0), ((15, 30), 0.75), ((None, 30), 0.5)],
)
def test_share_of_cached_prompt_tokens_is_told_where_the_endpoint_tells_it(
    num_cached: tuple[int | None, int | None], share: float | None
) -> None:
    records = [replace(GOOD, num_cached_tokens=each) for each in num_cached]
    assert summarize(records, SLO).cached_share == share


def test_summary_of_no_records_is_empty() -> None:
    summary = summarize([], SLO)
    assert summary.attainment is None
    assert summary.ttft is None and summary.tbt is None and summary.send_lag is None
    assert (summary.offered_rate, summary.goodput, summary.elapsed_s) == (0.0, 0.0, 0.0)


def test_summary_of_interrupted_requests_attains_and_misses_none() -> None:
    assert summarize([INTERRUPTED], SLO).attainment is None


def test_percentiles_interpolate() -> None:
    distribution = Distribution.of(list(range(101)))
    assert distribution == Distribution(mean=50, p50=50, p90=90, p95=95, p99=99, max=100)
    assert Distribution.of([1.0, 2.0]) == Distribution(1.5, 1.5, 1.9, 1.95, 1.99, 2.0)


@given(st.lists(st.sampled_from([GOOD, SLOW_START, SLOW_TOKENS, FAILED, INTERRUPTED]), max_size=30))
def test_summary_of_any_records_has_consistent_shares_and_counts(
    records: list[RequestRecord],
) -> None:
    summary = summarize(records, SLO)
    assert summary.num_sent == len(records)
    assert summary.num_sent == (
        summary.num_succeeded + summary.num_failed + summary.num_interrupted
    )
    assert sum(failed.count for failed in summary.failures) == summary.num_failed
    if summary.attainment is not None:
        assert summary.ttft_attainment is not None and summary.tpot_attainment is not None
        assert 0 <= summary.attainment <= min(summary.ttft_attainment, summary.tpot_attainment) <= 1
        assert summary.goodput <= summary.request_throughput


def test_requests_of_classes_are_judged_by_their_own_targets() -> None:
    strict = SloClass(name="strict", slo=Slo(0.4, 0.1))
    lax = SloClass(name="lax", slo=Slo(9.0, 1.0))
    records = [
        GOOD,
        SLOW_START,
        replace(GOOD, slo_class=strict),
        replace(SLOW_START, slo_class=lax),
        replace(FAILED, slo_class=lax),
        replace(INTERRUPTED, slo_class=lax),
    ]
    assert [record.meets(SLO) for record in records] == [True, False, False, True, False, False]
    summary = summarize(records, SLO)
    assert summary.attainment == pytest.approx(2 / 5)
    found = [(each.name, each.slo, each.num_requests) for each in summary.classes]
    assert found == [("default", SLO, 2), ("lax", lax.slo, 2), ("strict", strict.slo, 1)]
    assert [each.attainment for each in summary.classes] == [0.5, 0.5, 0.0]
    assert [each.ttft and each.ttft.max for each in summary.classes] == [1.001, 1.001, 0.5]
    assert summarize(records[:2], SLO).classes == ()


def arrivals(wait_s, num: int = 400) -> list[RequestRecord]:
    """Return a request each second that waits for ``wait_s(sent_s)``."""
    return [
        replace(GOOD, sent_s=float(sent_s), ttft_s=wait_s(sent_s), ended_s=sent_s + 500.0)
        for sent_s in range(num + 1)
    ]


@pytest.mark.parametrize(
    ("wait_s", "growth"),
    [
        (lambda sent_s: 3.0, 0.0),
        # One in ten has no first token by the end of the run.
        (lambda sent_s: 0.5 if sent_s % 10 else None, 0.1),
        # All wait, longer and longer: each second serves four fifths of what arrives.
        (lambda sent_s: sent_s / 4, 0.2),
        # What waited at first is served later.
        (lambda sent_s: max(0.5, 300.0 - sent_s), -2.5),
    ],
)
def test_growth_of_the_queue_is_per_request_that_arrives(wait_s, growth: float) -> None:
    assert queue_growth(arrivals(wait_s)) == pytest.approx(growth, abs=0.02)


def test_queue_of_one_or_no_request_does_not_grow() -> None:
    assert queue_growth([]) == queue_growth([replace(GOOD, sent_s=0.0)]) == 0.0
