"""The rate at which attainment falls below a level."""

import pytest

from macroserve_lab.bench.peers.knee import Knee, knee


def test_knee_between_two_rates_is_on_the_line_between_them() -> None:
    assert knee([(2.0, 1.0), (4.0, 0.95), (6.0, 0.85), (8.0, 0.3)], 0.9) == Knee(
        pytest.approx(5.0), False
    )


def test_knee_does_not_depend_on_the_order_of_points() -> None:
    assert knee([(6.0, 0.8), (4.0, 1.0)], 0.9) == knee([(4.0, 1.0), (6.0, 0.8)], 0.9)


def test_knee_at_a_swept_rate_is_that_rate() -> None:
    assert knee([(4.0, 0.9), (6.0, 0.5)], 0.9) == Knee(pytest.approx(4.0), False)


@pytest.mark.parametrize(
    ("attainments", "nearest"), [((1.0, 0.95, 0.9), 6.0), ((0.89, 0.7, 0.2), 2.0)]
)
def test_knee_outside_the_swept_rates_is_the_nearest_and_says_so(
    attainments: tuple[float, ...], nearest: float
) -> None:
    assert knee(zip((2.0, 4.0, 6.0), attainments, strict=True), 0.9) == Knee(nearest, True)


def test_knee_of_attainments_that_rise_pools_neighbors_first() -> None:
    # 0.88 and 0.96 become 0.92 each, so that a single dip is no knee.
    found = knee([(2.0, 1.0), (4.0, 0.88), (6.0, 0.96), (8.0, 0.72)], 0.9)
    assert found == Knee(pytest.approx(6.2), False)


def test_knee_of_one_rate_is_outside() -> None:
    assert knee([(3.0, 0.97)], 0.9) == Knee(3.0, True)
