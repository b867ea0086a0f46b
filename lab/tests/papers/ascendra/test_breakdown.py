"""Ascendra's pools and the baselines: the definitions of measurements, and the compared values."""

from dataclasses import replace

import pytest

from macroserve.core.batch import Batch, BatchKind, HandBackReason, HandedBack, Prefill
from macroserve.core.request import Request, Slo
from macroserve.core.status import Pool
from macroserve.sim.device import SimRequest
from macroserve.sim.instance import StepOutcome
from macroserve.sim.results import AT_END
from macroserve_lab.papers.ascendra import figures, traced
from macroserve_lab.papers.ascendra.figures import BREAKDOWN_RATES as RATES
from macroserve_lab.papers.ascendra.traced import delay, share
from macroserve_lab.papers.measurements import Metric, point


def _points(measured):
    of = [*traced.METRICS, *map(delay, Pool), *map(share, Pool)]
    return [point(measured.key, each) for each in of]


def test_breakdown_compares_the_delays_of_both_pools():
    values = {key: 1.0 for each in figures.BREAKDOWN.measurements for key in _points(each)}
    key = figures.BREAKDOWNS[RATES[0], "ascendra"].key
    values[point(key, delay(Pool.LP))] = 0.6
    values[point(key, delay(Pool.HP))] = 0.2
    values[point(key, share(Pool.HP))] = 0.3
    rows = {(r.case, r.strategy, r.metric): r for r in figures.BREAKDOWN.rows(values)}
    case = f"{RATES[0]:g} requests/s"
    row = rows[case, "LP over HP", "times the delay"]
    assert (row.ours, row.paper) == (pytest.approx(3.0), 4.0)
    assert rows[case, "HP", "share of the requests"].ours == 0.3
    assert rows[case, "HP", "delay in s"].ours == 0.2
    assert (case, "sarathi", Metric.LATE_TTFT.value) in rows


def test_breakdown_of_pools_has_all_requests_and_short_delays_at_hp():
    each = replace(figures.BREAKDOWNS[RATES[2], "ascendra"], duration_s=20.0)
    values = each.measure(0)
    assert values.keys() == set(_points(each))
    shares = {pool: values[point(each.key, share(pool))] for pool in Pool}
    assert shares[Pool.LP] + shares[Pool.HP] == pytest.approx(1.0)
    assert 0.05 < shares[Pool.HP] < 0.6
    assert 0.0 < values[point(each.key, delay(Pool.HP))] < values[point(each.key, delay(Pool.LP))]
    outcome = each.experiment.serve(each.rate, 20.0, stop=AT_END)
    waits_s = [result.wait_s for result in outcome.results]
    assert values[point(each.key, delay(Pool.LP))] < max(waits_s)
    assert values[point(each.key, Metric.LATE_TTFT)] <= max(waits_s)


def test_breakdown_without_pools_has_one_delay():
    each = replace(figures.BREAKDOWNS[RATES[0], "prefill-first"], duration_s=5.0)
    values = each.measure(0)
    assert values[point(each.key, share(Pool.HP))] == values[point(each.key, delay(Pool.HP))] == 0.0
    assert values[point(each.key, share(Pool.LP))] == 1.0


def _step(start_s, prefills=(), offloaded=(), finished=()):
    batch = Batch(
        BatchKind.PREFILL,
        tuple(Prefill(each, 8) for each in prefills),
        handed_back=tuple(HandedBack(each, HandBackReason.OFFLOAD) for each in offloaded),
    )
    return StepOutcome(batch, start_s, start_s + 1.0, 1, list(finished))


def test_delay_of_an_offloaded_request_counts_from_its_arrival_at_the_second_instance():
    kept, moved = (
        SimRequest(Request(each, 1.0, 8, 1, Slo(1.0, 1.0)), 1) for each in ("kept", "moved")
    )
    found = traced.Delays()
    # The second instance ends its step before the first one ends that which it began earlier.
    found.stepped("instance-0", _step(2.5, ["moved"], finished=[moved]))
    found.stepped("instance-1", _step(2.0, ["kept"], offloaded=["moved"]))
    found.stepped("instance-1", _step(3.0, ["kept"], finished=[kept]))
    assert dict(found.delays) == {"instance-0": 0.5, "instance-1": 1.0}
