"""EconoServe's numbers are varied one at a time."""

import pytest

from macroserve.core.tuning import DEFAULT_TUNING
from macroserve_lab.papers.econoserve import figures
from macroserve_lab.papers.econoserve.cases import MODELS, TRACES, targets
from macroserve_lab.papers.econoserve.completed import Completed
from macroserve_lab.papers.measurements import Metric, point

TUNED = {"padding": "kv_padding", "reserve": "kv_reserve", "buffer": "lending_buffer"}
PADDING, _, BUFFER = figures.FACTORS


def test_sensitivity_varies_one_number_at_a_time():
    measured = [each.key for each in figures.SENSITIVITY.measurements]
    assert len(set(measured)) == len(measured) == 3 * 5 + 3 * 3 * 6
    for (trace, scale), each in figures.SCALED.items():
        scenario = each.experiment.scenario
        assert scenario.slo == targets(MODELS[0], trace, scale)
        assert scenario.slo_rule == Completed.of(MODELS[0], trace, scale)
        assert scenario.tuning == DEFAULT_TUNING
    for factor, sweep in figures.FACTORED.items():
        tuned = TUNED[factor.name]
        for (trace, percent), each in sweep.items():
            scenario = each.experiment.scenario
            assert getattr(scenario.tuning, tuned) == percent / 100
            names = set(DEFAULT_TUNING.__slots__) - {tuned}
            assert all(getattr(scenario.tuning, n) == getattr(DEFAULT_TUNING, n) for n in names)
            assert scenario.slo == targets(MODELS[0], trace)


def _values() -> dict[str, float]:
    return {
        point(each.key, metric): 4.0
        for each in figures.SENSITIVITY.measurements
        for metric in figures.SENSITIVE
    }


def _rows(values):
    return {(row.case, row.strategy, row.metric): row for row in figures.SENSITIVITY.rows(values)}


def test_sensitivity_to_targets_is_the_mean_gain_of_the_traces():
    values = _values()
    for trace, share, times_s in zip(TRACES, (0.5, 0.6, 1.0), (3.0, 4.0, 6.0), strict=True):
        loose = figures.SCALED[trace, 2.5]
        values[point(figures.SCALED[trace, 0.5].key, Metric.ATTAINMENT)] = 0.0
        values[point(loose.key, Metric.ATTAINMENT)] = share
        values[point(loose.key, Metric.COMPLETION)] = times_s
    rows = _rows(values)
    case, name = "OPT-13B, all traces", "scale 2.5 over 0.5"
    row = rows[case, name, "points more in time"]
    assert (row.ours, row.paper) == (pytest.approx(70.0), 23.0)
    assert rows[case, name, "longer completion in %"].ours == pytest.approx(100 / 12)
    assert rows[case, name, "more requests/s in %"].ours == pytest.approx(0.0)


def test_sensitivity_reports_the_value_with_the_shortest_completion():
    values = _values()
    values[point(figures.FACTORED[PADDING][TRACES[1], 20].key, Metric.COMPLETION)] = 3.0
    rows = _rows(values)
    row = rows["ShareGPT, vLLM's", "best padding", "%"]
    assert (row.ours, row.paper) == (20, 15)
    worst = rows["ShareGPT, vLLM's", "worst padding over best", "longer completion in %"]
    assert worst.ours == pytest.approx(100 * (4.0 / 3.0 - 1))


def test_sensitivity_panels_are_relative_to_the_longest_completion():
    values = _values()
    values[point(figures.FACTORED[BUFFER][TRACES[0], 5].key, Metric.COMPLETION)] = 5.0
    by_scale, _, _, buffer = figures.SENSITIVITY.panels(values)
    assert dict(buffer.lines["Alpaca"])[5] == 1.0
    assert dict(buffer.lines["Alpaca"])[10] == pytest.approx(0.8)
    assert [scale for scale, _ in by_scale.lines["Alpaca"]] == [0.5, 1.0, 1.5, 2.0, 2.5]
