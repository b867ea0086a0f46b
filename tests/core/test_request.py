"""Requests and their targets have valid ranges."""

import pytest

from macroserve.core.request import Slo


@pytest.mark.parametrize("name", ["ttft_s", "tpot_s", "tbt_s"])
@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_slo_with_a_target_of_zero_is_refused(name: str, seconds: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Slo(**{"ttft_s": 1.0, "tpot_s": 0.1, "tbt_s": 0.2, name: seconds})


@pytest.mark.parametrize(
    ("ttft_s", "after_s", "num_after", "num_slow", "met"),
    [
        (1.0, 0.0, 0, 0, True),  # a single token has no pace
        (1.01, 0.0, 0, 0, False),
        (0.5, 1.0, 10, 0, True),
        (0.5, 1.01, 10, 0, False),
        (0.5, 9.0, 99, 1, False),
        (0.5, 9.0, 100, 1, True),
        (0.5, 9.0, 199, 2, False),
    ],
)
def test_slo_is_met_only_within_all_targets(
    ttft_s: float, after_s: float, num_after: int, num_slow: int, met: bool
) -> None:
    assert Slo(1.0, 0.1, 0.2).is_met(ttft_s, after_s, num_after, num_slow) is met


def test_slo_without_tbt_has_no_slow_gap() -> None:
    gaps_s = [0.1, 0.2, 0.3]
    assert Slo(1.0, 0.1, 0.2).num_slow(gaps_s) == 1
    assert Slo(1.0, 0.1).num_slow(gaps_s) == 0
    assert [Slo(1.0, 0.1, 0.2).is_slow(gap_s) for gap_s in gaps_s] == [False, False, True]
    assert not Slo(1.0, 0.1).is_slow(1e9)
