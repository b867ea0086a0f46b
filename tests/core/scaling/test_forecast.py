import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.scaling.forecast import CAP, forecast, growth
from macroserve.core.scaling.load import LoadBucket, LoadReport

BUCKET_S = 10.0


def load_of(counts, prompt=100, output=50):
    """Return a report with the given requests in each bucket, the oldest first."""
    buckets = [
        LoadBucket(age * BUCKET_S, count, count * prompt, count * output)
        for age, count in enumerate(reversed(counts))
    ]
    return LoadReport(BUCKET_S, tuple(buckets))


def requests_per_s(counts, horizon_s=60.0):
    demand = forecast(load_of(counts), horizon_s)
    assert demand is not None
    return demand.requests


counts = st.lists(st.integers(0, 500), min_size=1, max_size=60)


def test_forecast_without_buckets_is_unknown_and_without_requests_zero():
    assert forecast(load_of([]), 60.0) is None
    assert requests_per_s([0] * 60) == 0.0


@given(st.integers(0, 1000), st.integers(1, 60), st.floats(0, 600))
def test_forecast_of_a_steady_load_is_the_same(count, num_buckets, horizon_s):
    assert requests_per_s([count] * num_buckets, horizon_s) == pytest.approx(count / BUCKET_S)


def test_forecast_of_growth_continues_but_flattens():
    ramp = list(range(20, 80))
    now, soon, later, much_later = (requests_per_s(ramp, s) for s in (0.0, 60.0, 120.0, 3600.0))
    assert 7.4 < now < 7.9  # the last bucket had 79
    assert now < soon < 7.9 + 0.6
    assert soon < later < much_later < later + 0.5, "the trend fades"


def test_forecast_of_a_decline_continues_down_to_zero():
    assert requests_per_s(list(range(120, 60, -1))) < 6.1
    assert requests_per_s([400] * 6 + [300, 250, 200, 150, 100, 50, 0, 0, 0, 0, 0, 0]) == 0.0


def test_forecast_of_a_burst_counts_it_at_once():
    calm = [10] * 58
    assert requests_per_s([*calm, 100, 100]) >= 10.0
    assert requests_per_s([*calm, 10, 100]) >= 5.0


def test_forecast_of_random_variation_sees_no_burst():
    """Random variation adds one or two requests to twenty seconds at one request per second."""
    assert requests_per_s([10] * 58 + [12, 13]) < 1.2


def test_forecast_with_one_odd_bucket_has_no_trend():
    steady = [50] * 60
    steady[-9] = 400
    assert requests_per_s(steady) == pytest.approx(5.0)


@pytest.mark.parametrize("since", range(1, 19))
@pytest.mark.parametrize(("before", "after"), [(0, 180), (60, 180), (180, 60)])
def test_forecast_after_a_step_has_no_trend(before, after, since):
    """The age of the step does not matter; the load before it fades from the level in a minute."""
    noise = [0, 5, -5, 2, -3, 4, -2]
    counts = [before] * (60 - since) + [after + noise[i % len(noise)] for i in range(since)]
    low, high = sorted((before, after))
    assert 0.9 * low <= requests_per_s(counts) * BUCKET_S <= 1.1 * high
    if since > 6:
        assert requests_per_s(counts) * BUCKET_S == pytest.approx(after, rel=0.1)


@pytest.mark.parametrize("num_before", range(16))
def test_forecast_with_few_buckets_has_no_trend(num_before):
    assert requests_per_s([0] * num_before + [170, 190]) <= 19.0


@given(counts, st.floats(0, 3600))
def test_forecast_of_any_load_is_within_its_bounds(counts, horizon_s):
    """The forecast is never negative, and never much more than the largest burst."""
    expected = requests_per_s(counts, horizon_s)
    recent = counts[-6:]
    assert 0 <= expected <= CAP * max(recent) / BUCKET_S + 1e-9


@given(counts, st.integers(1, 4000), st.integers(1, 2000), st.floats(0, 600))
def test_forecast_of_tokens_follows_the_requests(counts, prompt, output, horizon_s):
    demand = forecast(load_of(counts, prompt, output), horizon_s)
    assert demand is not None
    assert demand.prompt_tokens == pytest.approx(demand.requests * prompt)
    assert demand.output_tokens == pytest.approx(demand.requests * output)


def test_forecast_of_tokens_uses_recent_prompt_lengths():
    old, new = load_of([10] * 54, prompt=100).buckets, load_of([10] * 6, prompt=1000).buckets
    demand = forecast(LoadReport(BUCKET_S, (*new, *old)), 60.0)
    assert demand is not None
    assert demand.prompt_tokens == pytest.approx(1000 * demand.requests)


@given(st.lists(st.integers(0, 500), min_size=30, max_size=60))
def test_forecast_ignores_the_order_of_old_buckets(counts):
    """The trend is that of the last three minutes."""
    past, recent = counts[:-18], counts[-18:]
    assert requests_per_s([*past, *recent]) == requests_per_s([*reversed(past), *recent])


# -- growth


@pytest.mark.parametrize(
    ("rates", "horizon_s", "expected"),
    [
        pytest.param([], 60.0, 0.0, id="no data"),
        pytest.param([4] * 60, 300.0, 0.0, id="steady"),
        pytest.param([2] * 30 + [4] * 30, 60.0, 2.0, id="one step"),
        pytest.param([2] * 30 + [4] * 30, 30.0, 1.0, id="half a step in half a minute"),
        pytest.param([2] * 20 + [4] * 20 + [6] * 20, 120.0, 2.0, id="one of two steps"),
        pytest.param([2] * 20 + [4] * 20 + [6] * 20, 300.0, 4.0, id="two steps in a long start"),
        pytest.param([2] * 30 + [6] * 10 + [3] * 20, 60.0, 4.0, id="a step before it fell"),
        pytest.param([6] * 20 + [4] * 20 + [2] * 20, 90.0, 0.0, id="falling"),
        pytest.param([2] * 9 + [4] * 6, 100.0, 0.0, id="not long enough known"),
        pytest.param([2] * 10 + [4] * 6, 100.0, 2.0, id="just long enough known"),
    ],
)
def test_growth_of_a_load_is_as_listed(rates, horizon_s, expected):
    load = load_of([rate * 10 for rate in rates])
    assert growth(load, horizon_s) == pytest.approx(expected)


@given(counts, st.floats(0, 600))
def test_growth_is_bounded_by_the_largest_count(counts, horizon_s):
    assert 0.0 <= growth(load_of(counts), horizon_s) <= max(counts) / BUCKET_S
