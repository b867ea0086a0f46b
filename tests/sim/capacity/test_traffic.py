from collections import defaultdict
from random import Random

import pytest
from msgspec.structs import replace
from support.slo_classes import BATCH, INTERACTIVE

from macroserve.core.scaling.load import LoadBucket, LoadReport
from macroserve.sim.capacity.traffic import (
    BUSY_S,
    HEADROOM,
    WARM_UP_S,
    Traffic,
    expected,
    last_minute,
    surge,
)


def test_traffic_without_requests_is_none(make_load):
    for load in (make_load([]), make_load([0.0] * 60)):
        assert expected(load, 5) is None
        assert last_minute(load, 5) is None


@pytest.mark.parametrize(
    ("num_waiting", "start_s", "rate"),
    [(0, 60.0, 4.0), (240, 60.0, 6.0), (240, 0.0, 8.0), (240, 180.0, 5.0)],
)
def test_expected_traffic_is_the_forecast_and_the_queue(num_waiting, start_s, rate, make_load):
    traffic = expected(make_load([4.0] * 60), num_waiting, start_s)
    assert traffic is not None
    assert (traffic.rates, traffic.duration_s) == ((rate,), BUSY_S)


def test_surge_is_the_forecast_and_the_largest_rise_within_a_start(make_load):
    load = make_load([2.0] * 20 + [4.0] * 20 + [6.0] * 20)
    rates = [surge(load, start_s).rates[0] for start_s in (0.0, 30.0, 120.0, 300.0)]
    assert rates == pytest.approx([6.0, 7.0, 8.0, 10.0])
    assert surge(make_load([0.0] * 60), 60.0) is None


def test_last_minute_includes_the_queue_and_keeps_the_shape_oldest_first(make_load):
    load = make_load([9.0] * 54 + [0.0, 1.0, 2.0, 3.0, 0.0, 1.0])
    expected_rates = [HEADROOM * rate + 2.0 for rate in (0.0, 1.0, 2.0, 3.0, 0.0, 1.0)]
    assert last_minute(load, 120).rates == pytest.approx(expected_rates)


def test_last_minute_has_the_lengths_of_its_requests(make_load):
    before, long = make_load([9.0] * 54, [(10, 10)]), make_load([5.0] * 6, [(1000, 200)])
    mixed = LoadReport(10.0, (*long.buckets, *before.buckets), before.lengths)
    assert last_minute(mixed, 0).lengths == [(1000, 200)]


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
    assert expected(load, 0).classes == last_minute(load, 0).classes == ("batch", "default")
    assert expected(replace(load, classes=("batch",)), 0).classes == (), "they are not those"
