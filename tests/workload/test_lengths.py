"""Distributions of lengths: their notation, and the statistics of draws."""

import numpy as np
import pytest

from macroserve.workload.lengths import (
    Constant,
    Exponential,
    LengthDistribution,
    Lognormal,
    Uniform,
    parse_lengths,
)

NUM_DRAWS = 20_000


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
def test_parse_lengths_returns_the_distribution_written(
    text: str, distribution: LengthDistribution
) -> None:
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
def test_parse_lengths_of_malformed_text_raises_with_the_syntax(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"write 128, uniform:10-200") as refusal:
        parse_lengths(text)
    assert reason in str(refusal.value)


def draws(distribution: LengthDistribution) -> np.ndarray:
    rng = np.random.default_rng(11)
    return np.array([distribution.draw(rng) for _ in range(NUM_DRAWS)])


def test_lognormal_draws_have_its_mean_and_median() -> None:
    lengths = draws(Lognormal(mean=343.76, median=148))
    assert np.median(lengths) == pytest.approx(148, rel=0.03)
    assert lengths.mean() == pytest.approx(343.76, rel=0.05)


def test_lognormal_with_equal_mean_and_median_is_constant() -> None:
    assert set(draws(Lognormal(mean=50, median=50))) == {50}


def test_exponential_draws_have_its_mean() -> None:
    assert draws(Exponential(200)).mean() == pytest.approx(200, rel=0.03)


def test_uniform_draws_reach_both_ends_equally_often() -> None:
    values, counts = np.unique(draws(Uniform(3, 6)), return_counts=True)
    assert values.tolist() == [3, 4, 5, 6]
    assert counts == pytest.approx(NUM_DRAWS / 4, rel=0.05)
