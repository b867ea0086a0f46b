"""Pipelines: the same devices in another layout."""

import pytest

from macroserve_lab.papers.ecoserve import figures


def test_pipeline_layouts_have_the_same_devices_and_memory():
    deployments = [each.experiment.scenario.cluster for each in figures.PIPELINES.measurements]
    assert {each.num_devices for each in deployments} == {4}
    assert {each.stages for each in deployments} == {1, 4}
    assert len({each.num_kv_tokens for each in deployments}) == 1


def test_pipeline_gains_are_of_the_layouts_under_one_target():
    values = {each.key: 2.0 for each in figures.PIPELINES.measurements}
    values[figures.LAID_OUT[200, figures.PIPELINED, "ecoserve"].key] = 7.0
    values[figures.LAID_OUT[200, figures.SHARED, "prefill-first"].key] = 0.0
    gains = {
        (row.case, row.strategy): row.ours
        for row in figures.PIPELINES.rows(values)
        if row.is_summary
    }
    assert gains["TPOT 200 ms", "ecoserve, TP1, PP4 over TP4"] == pytest.approx(3.5)
    assert gains["TPOT 200 ms", "prefill-first, TP1, PP4 over TP4"] == 1.0, (
        "the lowest rate tried counts"
    )
    assert gains["TPOT 100 ms", "ecoserve, TP1, PP4 over TP4"] == 1.0
    (panel,) = figures.PIPELINES.panels(values)
    assert panel.lines["ecoserve, TP1, PP4"][1] == (200.0, 7.0)
