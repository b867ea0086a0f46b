"""The share of a cell's time with work."""

import pytest

from macroserve.serving.cell.utilization import WINDOW_S, UtilizationMeter


def test_utilization_without_instances_is_zero() -> None:
    meter = UtilizationMeter()
    meter.tick(1.0)
    assert meter.share == 0.0


def test_time_counts_from_a_status_with_work_to_one_without() -> None:
    meter = UtilizationMeter()
    meter.observe("a", False, 0.0)
    meter.observe("b", True, 0.0)
    meter.observe("a", True, 3.0)
    meter.observe("a", True, 3.5)
    meter.observe("a", False, 4.0)
    meter.tick(4.0)
    assert meter.share == pytest.approx((1 + 4) / 8)
    meter.tick(8.0)
    assert meter.share == pytest.approx((1 + 8) / 16)


def test_utilization_of_an_instance_out_of_sight_does_not_count() -> None:
    meter = UtilizationMeter()
    meter.observe("a", True, 0.0)
    meter.observe("b", False, 0.0)
    meter.tick(2.0)
    meter.forget("a")
    meter.tick(6.0)
    meter.observe("a", True, 7.0)
    meter.tick(8.0)
    assert meter.share == pytest.approx((2 + 1) / (2 + 1 + 8))


def test_utilization_counts_only_the_last_seconds() -> None:
    meter = UtilizationMeter()
    meter.observe("a", True, 0.0)
    for second in range(1, 101):
        if second == 95:
            meter.observe("a", False, 95.0)
        meter.tick(float(second))
    assert meter.share == pytest.approx((WINDOW_S - 5) / WINDOW_S)
