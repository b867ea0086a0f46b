"""Ascendra's tickets give the HP instance work without making others late (section 6.1)."""

from dataclasses import replace

import pytest

from macroserve.core.batch import Batch, BatchKind
from macroserve.sim.instance import StepOutcome
from macroserve_lab.papers.ascendra import figures, traced
from macroserve_lab.papers.ascendra.figures import TICKET_RATES as RATES
from macroserve_lab.papers.ascendra.traced import HP_UTILIZATION
from macroserve_lab.papers.measurements import point

WITH, WITHOUT = figures.TICKETING


def _busy(name: str, rate: float) -> str:
    return point(figures.UTILIZATION[rate, name].key, HP_UTILIZATION)


def test_tickets_gain_is_the_largest_of_all_rates():
    values = {
        point(each.key, of): 0.0
        for each in figures.UTILIZATION.values()
        for of in (HP_UTILIZATION, "attainment")
    }
    values[_busy(WITH, RATES[1])] = 0.7
    values[_busy(WITHOUT, RATES[1])] = 0.3
    values[_busy(WITH, RATES[2])] = 0.9
    values[_busy(WITHOUT, RATES[2])] = 0.8
    *_, most = figures.TICKETS.rows(values)
    assert (most.ours, most.paper) == (pytest.approx(40.0), 50.0)


def test_tickets_keep_the_hp_instance_busy_and_make_nobody_late():
    found = {
        name: replace(figures.UTILIZATION[RATES[1], name], duration_s=30.0)
        for name in (WITH, WITHOUT)
    }
    values = {name: each.measure(0) for name, each in found.items()}
    assert values[WITH][_busy(WITH, RATES[1])] > 0.8
    assert values[WITHOUT][_busy(WITHOUT, RATES[1])] < 0.1
    attained = [values[name][point(found[name].key, "attainment")] for name in (WITH, WITHOUT)]
    assert attained[0] >= attained[1]


def test_busy_time_is_that_of_all_batches_until_the_last_one_ends():
    busy = traced._Busy()
    for start_s, end_s in ((0.0, 1.0), (4.0, 6.0)):
        batch = Batch(BatchKind.DECODE, decodes=("r",))
        busy.stepped("instance-0", StepOutcome(batch, start_s, end_s, 1, []))
    assert (dict(busy.seconds), busy.end_s) == ({"instance-0": 3.0}, 6.0)
