from collections import defaultdict
from random import Random

import pytest
from msgspec.structs import replace
from support.slo_classes import BATCH, INTERACTIVE

from macroserve.core.scaling.load import LoadBucket, LoadReport
from macroserve.sim.capacity.traffic import BUSY_S, HEADROOM, WARM_UP_S, Traffic, busiest, expected

LONG_S = 600.0


def test_traffic_without_requests_is_none(make_load):
    for load in (make_load([]), make_load([0.0] * 60)):
        assert expected(load, 5) is None
        assert busiest(load, 5, LONG_S) is None


@pytest.mark.parametrize(("num_waiting", "rate"), [(0, 4.0), (240, 8.0)])
def test_expected_traffic_is_the_forecast_and_the_queue(num_waiting, rate, make_load):
    traffic = expected(make_load([4.0] * 60), num_waiting)
    assert traffic is not None
    assert (traffic.rates, traffic.duration_s) == ((rate,), BUSY_S)


def test_busiest_traffic_includes_the_queue(make_load):
    load = make_load([1.0] * 20 + [9.0] * 6 + [1.0] * 34)
    assert busiest(load, 120, LONG_S).rates == pytest.approx([HEADROOM * 9.0 + 2.0] * 6)


def test_busiest_traffic_is_the_minute_with_the_most_tokens(make_load):
    many = make_load([1.0] * 20 + [9.0] * 6 + [1.0] * 34, [(10, 10)])
    long = make_load([5.0] * 6, [(1000, 200)])
    assert busiest(many, 0, LONG_S).rates == pytest.approx([HEADROOM * 9.0] * 6)
    mixed = LoadReport(10.0, (*long.buckets, *many.buckets), many.lengths)
    traffic = busiest(mixed, 0, LONG_S)
    assert traffic.rates == pytest.approx([HEADROOM * 5.0] * 6)
    assert traffic.lengths == [(1000, 200)], "as long as they were in that minute"


def test_busiest_traffic_ignores_older_load_but_takes_one_minute(make_load):
    load = make_load([9.0] * 6 + [2.0] * 6 + [1.0] * 6)
    assert busiest(load, 0, 180.0).rates == pytest.approx([HEADROOM * 9.0] * 6)
    assert busiest(load, 0, 120.0).rates == pytest.approx([HEADROOM * 2.0] * 6)
    assert busiest(load, 0, 5.0).rates == pytest.approx([HEADROOM * 1.0] * 6)


def test_busiest_traffic_keeps_the_shape_oldest_first():
    counts = [0, 0, 10, 20, 30, 0, 0, 0]
    buckets = [LoadBucket(10.0 * i, n, 100 * n, 50 * n) for i, n in enumerate(reversed(counts))]
    traffic = busiest(LoadReport(10.0, tuple(buckets), ((100, 50),)), 0, LONG_S)
    rates = [rate / HEADROOM for rate in traffic.rates if rate]
    assert rates == pytest.approx([1.0, 2.0, 3.0])


def test_traffic_without_a_sample_of_lengths_has_the_mean_ones():
    load = LoadReport(10.0, (LoadBucket(0.0, 10, 3000, 500),))
    assert expected(load, 0).lengths == [(300, 50)]


def test_arrivals_of_a_share_follow_the_warm_up():
    traffic = Traffic((8.0,), 60.0, [(5, 5)])
    arrivals, num_before = traffic.arrivals(0.25, 3, Random(0))
    times = [arrival.at_s for arrival in arrivals]
    assert times == sorted(times)
    assert num_before == sum(t < WARM_UP_S for t in times)
    assert num_before == pytest.approx(0.25 * 8 * WARM_UP_S, rel=0.4)
    assert len(times) - num_before == pytest.approx(0.25 * 8 * 180, rel=0.2)
    assert times[-1] > WARM_UP_S + 150


def test_arrivals_are_of_the_class_of_a_request_of_their_lengths():
    lengths = ((5, 5), (5, 5), (900, 100), (7, 7))
    classes = ("interactive", "default", "batch", "gone")
    traffic = Traffic((8.0,), 60.0, lengths, classes)
    found, _ = traffic.arrivals(1.0, 2, Random(0), (INTERACTIVE, BATCH))
    by_lengths = defaultdict(set)
    for arrival in found:
        by_lengths[arrival.num_prompt_tokens].add(arrival.slo_class)
    assert by_lengths == {5: {INTERACTIVE, None}, 900: {BATCH}, 7: {None}}
    plain, _ = traffic.arrivals(1.0, 2, Random(0))
    assert plain == [arrival._replace(slo_class=None) for arrival in found]


def test_traffic_has_the_classes_of_the_report(make_load):
    load = replace(make_load([4.0] * 60, ((5, 5), (9, 9))), classes=("batch", "default"))
    assert expected(load, 0).classes == busiest(load, 0, LONG_S).classes == ("batch", "default")
    assert expected(replace(load, classes=("batch",)), 0).classes == (), "they are not those"
