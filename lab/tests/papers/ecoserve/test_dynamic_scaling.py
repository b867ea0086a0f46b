"""Dynamic scaling: readings while a fleet grows."""

from dataclasses import replace

import pytest

from macroserve_lab.papers.ecoserve import figures


def test_dynamic_scaling_rows_follow_from_the_readings():
    values = {}
    for growth in figures.RISING.values():
        for index in range(28):
            at_s = 30.0 * (index + 1)
            values[growth.point("attainment", at_s)] = 0.5 if index in (4, 5) else 1.0
            values[growth.point("instances", at_s)] = 8 + (index > 5)
    rows = {
        row.metric: row.ours
        for row in figures.DYNAMIC_SCALING.rows(values)
        if row.is_summary and row.strategy == "ecoserve"
    }
    assert rows == {
        "instances at the end": 9,
        "readings at 90 % or more, of all": pytest.approx(26 / 28),
        "mean attainment": pytest.approx(27 / 28),
        "lowest attainment": 0.5,
    }
    rate, attainment, instances = figures.DYNAMIC_SCALING.panels(values)
    assert rate.lines["arrivals"][:4] == [(0, 20), (120, 20), (120, 25), (240, 25)]
    assert attainment.lines["unified"][4] == (150.0, 0.5)
    assert instances.lines["unified"][-1] == (840.0, 9)


def test_dynamic_scaling_at_a_rising_rate_adds_instances(monkeypatch):
    """The rate rises twice, each time for a minute, on a fleet that is too small from the start."""
    monkeypatch.setattr(figures, "RISING_RATES", (20.0, 40.0))
    monkeypatch.setattr(figures, "RISE_EVERY_S", 60.0)
    monkeypatch.setattr(figures, "FEWEST", 4)
    growth = replace(figures.RISING["unified"])
    values = growth.measure(seed=0)
    instances = [num for _, num in growth.line("instances", values)]
    assert instances[0] == 4 < instances[-1]
    assert all(0.0 <= share <= 1.0 for _, share in growth.line("attainment", values))
