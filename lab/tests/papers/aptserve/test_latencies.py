"""Latencies by the order of the requests, compared to the paper's bounds."""

import pytest

from macroserve_lab.papers.aptserve import figures
from macroserve_lab.papers.aptserve.cases import DECAYED
from macroserve_lab.papers.measurements import PERCENTS

VARIANTS = ("aptserve, FCFS", "aptserve", DECAYED)


def test_latencies_orders_differ_in_the_order_alone():
    for name in figures.SPREAD_RATES:
        spreads = {variant: figures.SPREADS[name, variant] for variant in VARIANTS}
        assert len({spread.rate for spread in spreads.values()}) == 1
        scenarios = {variant: spread.experiment.scenario for variant, spread in spreads.items()}
        assert {each.cluster for each in scenarios.values()} == {scenarios["aptserve"].cluster}
        assert scenarios[DECAYED].strategy == scenarios["aptserve"].strategy
        assert scenarios[DECAYED].tuning.late_value == 0.4
        assert scenarios["aptserve"].tuning.late_value == 0.0


def test_latencies_rows_have_the_bounds_and_the_percentiles():
    values = {}
    for (_, variant), spread in figures.SPREADS.items():
        share = 0.2 if variant == "aptserve, FCFS" else 0.95
        values[f"{spread.key}, attainment"] = share
        for latency, times in (("TTFT", 1.0), ("P99 TBT", 0.1)):
            for percent in PERCENTS:
                values[f"{spread.key}, {latency} p{percent}"] = times * percent
    rows = {(row.case, row.strategy, row.metric): row for row in figures.LATENCIES.rows(values)}
    case = "LongBench, 2 requests/s"
    fcfs = rows[case, "aptserve, FCFS", "attainment in %"]
    assert (fcfs.ours, fcfs.paper) == (pytest.approx(20.0), 30.0)
    ours = rows[case, "aptserve", "attainment in %"]
    assert (ours.ours, ours.paper) == (pytest.approx(95.0), 90.0)
    assert rows[case, DECAYED, "attainment in %"].paper is None
    assert rows[case, DECAYED, "TTFT in s, p99"].ours == 99.0
    assert rows[case, "aptserve", "P99 TBT in s, p50"].ours == pytest.approx(5.0)
    panels = figures.LATENCIES.panels(values)
    assert [panel.x for panel in panels] == ["TTFT in s"] * 3 + ["P99 TBT in s"] * 3
    assert panels[-1].lines["aptserve"][-1] == (pytest.approx(9.9), 0.99)
