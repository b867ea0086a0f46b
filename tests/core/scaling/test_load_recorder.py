"""A cell records the load of recent requests, and the load of cells can be added up."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.scaling.load import LoadBucket, LoadReport
from macroserve.core.scaling.load_recorder import (
    NUM_BUCKETS,
    SAMPLE_SIZE,
    LoadRecorder,
    aged,
    total,
)
from macroserve.core.shapes import DeviceShape

START_S = 1000.5


def recorder() -> LoadRecorder:
    return LoadRecorder(START_S, random.Random(0))


def requests(report: LoadReport) -> list[int]:
    return [bucket.requests for bucket in report.buckets]


def test_load_recorder_counts_requests_in_buckets_newest_first() -> None:
    load = recorder()
    load.add(100, 10, now=1002.0)
    load.add(50, 20, now=1011.0)
    load.add(60, 30, now=1029.9)
    report = load.report(now=1030.7)
    assert report.buckets == (
        LoadBucket(0, 1, 60, 30),
        LoadBucket(10, 1, 50, 20),
        LoadBucket(20, 1, 100, 10),
    )
    assert report.lengths == ((100, 10), (50, 20), (60, 30))


def test_load_report_has_only_whole_buckets() -> None:
    load = recorder()
    load.add(1, 1, now=1001.0)
    assert load.report(now=1009.0).buckets == ()
    # The present second is not over, so it counts from the next one on.
    load.add(1, 1, now=1012.2)
    assert requests(load.report(now=1012.9)) == [0]
    assert requests(load.report(now=1013.0)) == [1]


def test_load_recorder_remembers_ten_minutes() -> None:
    load = recorder()
    for second in range(2000):
        load.add(3, 2, now=START_S + second)
    report = load.report(now=START_S + 2000)
    assert report.buckets == tuple(LoadBucket(10 * i, 10, 30, 20) for i in range(NUM_BUCKETS))
    assert requests(load.report(now=START_S + 2300)) == [0] * 30 + [10] * 30
    assert requests(load.report(now=START_S + 9000)) == [0] * NUM_BUCKETS


@given(st.lists(st.floats(0, 700), max_size=60), st.floats(0, 100))
def test_load_report_has_every_request_in_one_bucket(times: list[float], later_s: float) -> None:
    load = recorder()
    for time_s in sorted(times):
        load.add(1, 1, now=START_S + time_s)
    now = START_S + max(times, default=0.0) + later_s
    report = load.report(now)
    newest = int(now)
    oldest = newest - 10 * len(report.buckets)
    seconds = [int(START_S + time_s) for time_s in times]
    assert sum(requests(report)) == sum(oldest <= second < newest for second in seconds)


def test_load_sample_is_bounded_and_follows_the_requests() -> None:
    load = recorder()
    for i in range(20_000):
        load.add(100 if i < 10_000 else 900, 5, now=START_S + i / 20)
    lengths = Counter(load.report(now=START_S + 1001).lengths)
    # Of the last ten minutes of the 1000 s, a sixth is from the first half.
    assert lengths.total() == SAMPLE_SIZE
    assert 0.1 < lengths[100, 5] / SAMPLE_SIZE < 0.3


def test_load_sample_after_a_quiet_time_follows_sooner() -> None:
    load = recorder()
    for i in range(20_000):
        load.add(100, 5, now=START_S + i / 100)
    for i in range(1000):
        load.add(900, 5, now=START_S + 2000 + i / 100)
    assert Counter(load.report(now=START_S + 2011).lengths)[900, 5] > SAMPLE_SIZE / 2


def test_load_of_several_cells_is_their_sum() -> None:
    device = DeviceShape(1.0, 1.0)
    a = LoadReport(10, (LoadBucket(0, 1, 10, 5), LoadBucket(10, 2, 20, 6)), ((10, 5),))
    b = LoadReport(10, (LoadBucket(0, 4, 40, 7),), ((1, 2),), (1.0,) * 5, None, device)
    summed = total([a, b], random.Random(0))
    assert summed.buckets == (LoadBucket(0, 5, 50, 12), LoadBucket(10, 2, 20, 6))
    assert set(summed.lengths) == {(10, 5), (1, 2)}
    assert (summed.coefficients, summed.device) == ((1.0,) * 5, device)
    assert total([], random.Random(0)) == LoadReport(10)


def test_load_sample_has_requests_of_each_cell_by_its_share() -> None:
    busy = LoadReport(10, (LoadBucket(0, 2999, 0, 0),), ((1, 1),) * SAMPLE_SIZE)
    calm = LoadReport(10, (LoadBucket(0, 999, 0, 0),), ((2, 2),) * SAMPLE_SIZE)
    lengths = Counter(total([busy, calm], random.Random(0)).lengths)
    assert lengths == {(1, 1): 192, (2, 2): 64}


@pytest.mark.parametrize(
    ("age_s", "ages"),
    [(0, [0, 10]), (25, [25, 35]), (585, [585, 595]), (590, [590]), (600, [])],
)
def test_load_of_a_cell_that_is_gone_ages(age_s: float, ages: list[float]) -> None:
    report = LoadReport(10, (LoadBucket(0, 1, 1, 1), LoadBucket(10, 2, 2, 2)), ((1, 1),))
    older = aged(report, age_s)
    assert [bucket.age_s for bucket in older.buckets] == ages
    assert bool(older.lengths) == bool(ages)


def test_load_of_a_time_that_no_cell_reports_is_kept() -> None:
    gone = aged(LoadReport(10, (LoadBucket(0, 5, 5, 5),)), 47)
    now = LoadReport(10, (LoadBucket(0, 1, 1, 1),))
    summed = total([now, gone], random.Random(0))
    assert requests(summed) == [1, 0, 0, 0, 5]


def test_load_that_ended_keeps_its_age() -> None:
    gone = aged(LoadReport(10, (LoadBucket(0, 5, 5, 5), LoadBucket(10, 6, 6, 6))), 97)
    summed = total([LoadReport(10), gone], random.Random(0))
    assert [(bucket.age_s, bucket.requests) for bucket in summed.buckets] == [(90, 5), (100, 6)]


def test_load_of_a_deleted_cell_keeps_its_times() -> None:
    gone = aged(LoadReport(10, (LoadBucket(0, 5, 5, 5),)), 27)
    now = LoadReport(10, (LoadBucket(0, 1, 1, 1), LoadBucket(10, 2, 2, 2)))
    summed = total([now, gone], random.Random(0))
    assert [(bucket.age_s, bucket.requests) for bucket in summed.buckets] == [
        (0, 1),
        (10, 2),
        (20, 5),
    ]


def test_load_sample_keeps_the_class_of_each_request() -> None:
    load = recorder()
    load.add(100, 10, START_S + 1)
    assert load.report(START_S + 20).classes == (), "all are of the default class"
    load.add(900, 20, START_S + 2, "batch")
    report = load.report(START_S + 20)
    assert [*zip(report.lengths, report.classes, strict=True)] == [
        ((100, 10), "default"),
        ((900, 20), "batch"),
    ]
    assert aged(report, 10).classes == report.classes
    assert aged(report, 600).classes == ()
    plain = LoadReport(10, (LoadBucket(0, 2, 10, 5),), ((1, 1),) * 2)
    summed = total([report, plain], random.Random(0))
    found = set(zip(summed.lengths, summed.classes, strict=True))
    assert found == {((100, 10), "default"), ((900, 20), "batch"), ((1, 1), "default")}
