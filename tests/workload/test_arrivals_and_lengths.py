"""Statistics of the synthetic load: rates, burstiness, and the distributions of lengths."""

from itertools import islice

import numpy as np
import pytest

from macroserve.workload.arrivals import arrival_times
from macroserve.workload.lengths import (
    Constant,
    Exponential,
    LengthDistribution,
    Lognormal,
    Uniform,
    parse_lengths,
)

NUM_DRAWS = 20_000


@pytest.mark.parametrize("rate", [0.5, 40.0])
@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_arrivals_have_the_rate_and_the_burstiness_asked_for(rate: float, cv: float) -> None:
    rng = np.random.default_rng(7)
    times = np.array(list(islice(arrival_times(rate, cv, rng), NUM_DRAWS)))
    gaps = np.diff(times, prepend=0.0)
    assert gaps.min() >= 0
    # The mean of n gaps has a standard error of cv / sqrt(n), here at most 2 %.
    assert gaps.mean() == pytest.approx(1 / rate, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-9)


def test_arrivals_at_another_rate_keep_their_pattern() -> None:
    slow = islice(arrival_times(1.0, 2.0, np.random.default_rng(3)), 100)
    fast = islice(arrival_times(4.0, 2.0, np.random.default_rng(3)), 100)
    assert [t / 4 for t in slow] == pytest.approx(list(fast))


@pytest.mark.parametrize(
    ("text", "distribution"),
    [
        ("128", Constant(128)),
        ("uniform:10-200", Uniform(10, 200)),
        ("exponential:mean=163.8", Exponential(163.8)),
        ("lognormal:mean=340,median=148", Lognormal(340, 148)),
        ("lognormal:median=148, mean=340", Lognormal(340, 148)),
    ],
)
def test_lengths_parse(text: str, distribution: LengthDistribution) -> None:
    assert parse_lengths(text) == distribution


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is not a whole number"),
        ("0", "at least one token"),
        ("-5", "'-5' is not a whole number"),
        ("12.5", "'12.5' is not a whole number"),
        ("gauss:mean=3", "'gauss:mean=3' is not a whole number"),
        ("uniform:10", "'' is not a whole number"),
        ("uniform:20-10", "must run upwards"),
        ("uniform:0-10", "at least one token"),
        ("exponential:200", "it takes mean"),
        ("exponential:mean=0.2", "at least one token"),
        ("exponential:mean=nan", "at least one token"),
        ("exponential:mean=inf", "at least one token"),
        ("lognormal:mean=340", "it takes mean and median"),
        ("lognormal:mean=340,median=148,sigma=1", "it takes mean and median"),
        ("lognormal:mean=100,median=148", "must not be below the median"),
        ("lognormal:mean=a,median=b", "does not give numbers"),
    ],
)
def test_malformed_lengths_get_a_sentence_that_shows_the_syntax(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"write 128, uniform:10-200") as refusal:
        parse_lengths(text)
    assert reason in str(refusal.value)


def draws(distribution: LengthDistribution) -> np.ndarray:
    rng = np.random.default_rng(11)
    return np.array([distribution.draw(rng) for _ in range(NUM_DRAWS)])


def test_lognormal_fits_its_mean_and_its_median() -> None:
    lengths = draws(Lognormal(mean=343.76, median=148))
    assert np.median(lengths) == pytest.approx(148, rel=0.03)
    assert lengths.mean() == pytest.approx(343.76, rel=0.05)


def test_lognormal_without_spread_is_constant() -> None:
    assert set(draws(Lognormal(mean=50, median=50)).round(9)) == {50.0}


def test_exponential_has_its_mean() -> None:
    assert draws(Exponential(200)).mean() == pytest.approx(200, rel=0.03)


def test_uniform_reaches_both_ends_equally_often() -> None:
    values, counts = np.unique(draws(Uniform(3, 6)), return_counts=True)
    assert values.tolist() == [3, 4, 5, 6]
    assert counts == pytest.approx(NUM_DRAWS / 4, rel=0.05)
