"""Ascendra's tickets give the HP instance work that nobody else is late for (section 6.1)."""

from dataclasses import replace

import pytest

from macroserve.core.batch import Batch, BatchKind
from macroserve.sim.instance import StepOutcome
from macroserve_lab.papers.ascendra import tickets

WITH, WITHOUT = tickets.VARIANTS


def test_tickets_gain_is_the_largest_of_all_rates():
    values = {name: 0.0 for m in tickets.MEASURED.values() for name in (m.busy, m.attained)}
    values[tickets.MEASURED[WITH, tickets.RATES[1]].busy] = 0.7
    values[tickets.MEASURED[WITHOUT, tickets.RATES[1]].busy] = 0.3
    values[tickets.MEASURED[WITH, tickets.RATES[2]].busy] = 0.9
    values[tickets.MEASURED[WITHOUT, tickets.RATES[2]].busy] = 0.8
    *_, most = tickets.rows(values)
    assert (most.ours, most.paper) == (pytest.approx(40.0), 50.0)


def test_tickets_keep_the_hp_instance_busy_and_make_nobody_late():
    found = {
        name: replace(tickets.MEASURED[name, tickets.RATES[1]], duration_s=30.0)
        for name in (WITH, WITHOUT)
    }
    values = {name: each.measure(0) for name, each in found.items()}
    assert values[WITH][found[WITH].busy] > 0.8
    assert values[WITHOUT][found[WITHOUT].busy] < 0.1
    assert values[WITH][found[WITH].attained] >= values[WITHOUT][found[WITHOUT].attained]


def test_busy_time_is_that_of_all_batches_until_the_last_one_ends():
    busy = tickets._Busy()
    for start_s, end_s in ((0.0, 1.0), (4.0, 6.0)):
        batch = Batch(BatchKind.DECODE, decodes=("r",))
        busy.stepped("instance-0", StepOutcome(batch, start_s, end_s, 1, [], []))
    assert (dict(busy.seconds), busy.end_s) == ({"instance-0": 3.0}, 6.0)
