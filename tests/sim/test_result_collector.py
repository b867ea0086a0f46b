from itertools import accumulate

import pytest
from support.records import record

from macroserve.core.request import Slo
from macroserve.sim.result_collector import ResultCollector
from macroserve.sim.results import AT_END, StopRule
from macroserve_lab.papers.measurements import Metric


@pytest.mark.parametrize("num_gaps", [0, 1, 99, 100, 101, 250])
@pytest.mark.parametrize("num_slow", [0, 1, 2, 3])
def test_reported_tbt_decides_attainment(num_gaps, num_slow):
    slo = Slo(ttft_s=100.0, tpot_s=100.0, tbt_s=0.1)
    gaps_s = [0.2 if index < num_slow else 0.05 for index in range(num_gaps)]
    request = record(num_output=1 + len(gaps_s), slo=slo)
    results = ResultCollector(1, stop=AT_END)
    results.expect(request)
    request.emit(list(accumulate(gaps_s, initial=1.0)))
    results.ended(request)
    (result,) = results.outcome.results
    assert (result.tbt_s <= 0.1) is result.attained
    assert result.tbt_s in [0.0, *request.gaps_s]


def begun(results, num):
    """Return requests that arrive one per second: the first ended at 1.0 and the second was
    refused."""
    records = [record(str(i), arrival_s=float(i)) for i in range(num)]
    for each in records:
        results.expect(each)
    records[0].emit([0.5])
    records[0].emit([1.0] * 10)
    results.ended(records[0])
    results.refused(records[1], 3.0)
    return records


def test_results_are_complete_when_no_request_is_open():
    results = ResultCollector(4)
    records = begun(results, 4)
    results.refused(record("somebody else's"), 3.0)
    records[2].emit([3.0])
    results.pass_time(5.0)
    assert not results.is_complete
    assert results.outcome.requests == 2
    results.pass_time(5.1)
    assert results.outcome.requests == 3, "the last is late, the third only has to go on"
    records[2].emit([9.0] * 10)
    results.ended(records[2])
    results.ended(records[2])
    assert results.is_complete
    outcome = results.outcome
    assert (outcome.requests, outcome.attained, outcome.decided) == (4, 1, True)
    assert outcome.attainment == 0.25


def test_requests_without_a_token_are_open_under_a_rule_that_ignores_it():
    class Completed:
        ignores_ttft = True

        def __call__(self, record):
            return record.last_s <= 9.0

    results = ResultCollector(2, slo_rule=Completed())
    records = [record("in time", arrival_s=0.0), record("late", arrival_s=1.0)]
    for each in records:
        results.expect(each)
    results.pass_time(7.0)
    assert results.outcome.requests == 0
    for each, end_s in zip(records, (9.0, 9.5), strict=True):
        each.emit([end_s] * 11)
        results.ended(each)
    assert (results.outcome.requests, results.outcome.attained) == (2, 1)


def test_results_include_the_latency_of_late_requests():
    results = ResultCollector(3, stop=AT_END)
    records = begun(results, 3)
    results.pass_time(5.1)
    assert not results.is_complete, "the last is known to be late, and has to come to its end"
    records[2].emit([9.0] * 11)
    results.ended(records[2])
    assert results.is_complete
    # Of the two that ended, eleven tokens each: at 1.0 after 0.0, at 9.0 after 2.0.
    assert Metric.NORMALISED_LATENCY.of(results.outcome) == pytest.approx((1.0 + 7.0) / 11 / 2)
    assert results.outcome.completion_s == pytest.approx((1.0 + 7.0) / 2)
    # One request arrived at 0.0, and the last token came at 9.0.
    assert Metric.THROUGHPUT.of(results.outcome) == pytest.approx(2 / 9)


@pytest.mark.parametrize(("limit_s", "is_lost"), [(0.12, False), (0.11, True)])
def test_results_are_complete_when_the_latency_exceeds_its_limit(limit_s, is_lost):
    results = ResultCollector(4, stop=StopRule(to_the_end=True, limit_s=limit_s))
    records = begun(results, 4)
    records[2].emit([6.0] * 11)
    results.ended(records[2])
    # 1.0 and 4.0 s for eleven tokens, and nothing at all for the two others is 0.114 s a token.
    assert results.is_complete == is_lost
    assert Metric.NORMALISED_LATENCY.of(results.outcome) > limit_s


def test_results_are_complete_when_the_goal_is_lost():
    records = [record(str(i)) for i in range(10)]
    results = ResultCollector(10, stop=StopRule(goal=0.8))
    for each in records:
        results.expect(each)
    for missed in records[:2]:
        results.refused(missed, 3.0)
    assert not results.is_complete
    assert results.outcome.attainment == 0.0 and not results.outcome.decided
    results.refused(records[2], 3.0)
    assert results.is_complete and results.outcome.decided


def test_results_to_the_end_wait_for_late_requests():
    records = [record(str(i), num_output=size) for i, size in enumerate((11, 21, 31, 41, 51))]
    results = ResultCollector(5, stop=AT_END)
    for each in records:
        results.expect(each)
    results.pass_time(7.0)
    assert results.outcome.requests == 5 and not results.is_complete, "all late, none ended"
    for at_s, each in enumerate(records[:4], start=3):
        each.emit([float(at_s)])
        each.emit([at_s + 0.05 * (each.num_output - 1)] * (each.num_output - 1))
        results.ended(each)
    assert not results.is_complete
    results.refused(records[4], 9.5)
    assert results.is_complete
    outcome = results.outcome
    assert outcome.attained == 0 and outcome.longest_wait_s == 9.5
    assert [v.refused for v in outcome.results] == [False] * 4 + [True]
    first = outcome.results[0]
    assert (first.num_prompt_tokens, first.num_output_tokens, first.wait_s) == (10, 11, 3.0)
    assert first.tpot_s == pytest.approx(0.05)


def test_attainment_by_size_begins_with_the_smallest():
    records = [record(str(i), num_output=size) for i, size in enumerate((80, 10, 40, 20, 70, 50))]
    results = ResultCollector(6, stop=AT_END)
    for each in records:
        results.expect(each)
        late = each.num_output > 45
        each.emit([3.0 if late else 1.0])
        each.emit([3.01 if late else 1.01] * (each.num_output - 1))
        results.ended(each)
    assert results.outcome.by_size == (1.0, 1.0, 0.0, 0.0)


def test_requests_are_late_by_their_own_targets():
    """The one that came first is due last."""
    results = ResultCollector(2, stop=AT_END)
    records = [record("lax", 0.0, slo=Slo(30.0, 0.5)), record("strict", 1.0, slo=Slo(1.0, 0.05))]
    for each in records:
        results.expect(each)
    results.pass_time(2.1)
    assert (results.outcome.requests, results.outcome.attained) == (1, 0)
    for each in records:
        each.emit([5.0] * 11)
        results.ended(each)
    assert (results.outcome.requests, results.outcome.attained) == (2, 1)
