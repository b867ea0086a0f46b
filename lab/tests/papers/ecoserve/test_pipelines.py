"""Pipelines: the same devices in another layout."""

import pytest

from macroserve_lab.papers.ecoserve import pipelines


def test_pipeline_layouts_have_the_same_devices_and_memory():
    deployments = [each.experiment.scenario.cluster for each in pipelines.measurements()]
    assert {each.num_devices for each in deployments} == {4}
    assert {each.stages for each in deployments} == {1, 4}
    assert len({each.num_kv_tokens for each in deployments}) == 1


def test_pipeline_gains_are_of_the_layouts_under_one_target():
    values = {each.key: 2.0 for each in pipelines.measurements()}
    values[pipelines.measurement_key("ecoserve", pipelines.PIPELINED, 0.2)] = 7.0
    values[pipelines.measurement_key("prefill-first", pipelines.SHARED, 0.2)] = 0.0
    gains = {(row.case, row.strategy): row.ours for row in pipelines.rows(values) if row.is_summary}
    assert gains["TPOT 200 ms", "ecoserve, TP1, PP4 over TP4"] == pytest.approx(3.5)
    assert gains["TPOT 200 ms", "prefill-first, TP1, PP4 over TP4"] == 1.0, (
        "the lowest rate tried counts"
    )
    assert gains["TPOT 100 ms", "ecoserve, TP1, PP4 over TP4"] == 1.0
    (panel,) = pipelines.panels(values)
    assert panel.lines["ecoserve, TP1, PP4"][1] == (200.0, 7.0)
