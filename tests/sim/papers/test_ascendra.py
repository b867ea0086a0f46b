"""Ascendra's figures: the cases, and what stands beside what."""

import pytest

from macroserve.core.strategy import Ordering
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.papers import ascendra


def test_three_instances_of_which_one_is_of_high_priority():
    measured = ascendra.goodput_measurements()
    assert len({each.key for each in measured}) == 3 * 4
    for each in measured:
        experiment = each.experiment
        assert experiment.setup.deployment.num_instances == 3
        papers_own = experiment.setup.strategy.name == "ascendra"
        assert experiment.setup.high_priority_ratio == (1 / 3 if papers_own else 0.0)


def test_gains_are_percent_of_goodput():
    values = {each.key: 4.0 for each in ascendra.goodput_measurements()}
    values["Mistral-7B, ShareGPT4 ascendra"] = 5.0
    rows = {(row.case, row.strategy): row for row in ascendra.goodput_rows(values)}
    row = rows["Mistral-7B, ShareGPT4", "ascendra over vllm"]
    assert (row.ours, row.paper) == (pytest.approx(25.0), 19.1)
    assert rows["Llama3.1-8B, LongBench", "ascendra over sarathi"].ours == pytest.approx(0.0)


def test_variants_differ_in_one_thing():
    variants = ascendra.VARIANTS
    assert variants["shortest first"].setup.strategy.ordering is Ordering.SJF
    assert variants["1 LP + 2 HP"].setup.high_priority_ratio == 2 / 3
    for name in ("1 LP + 1 HP", "2 vllm", "2 sarathi"):
        deployment = variants[name].setup.deployment
        assert (deployment.num_instances, deployment.model) == (2, MODELS["Llama3.1-8B"])
    values = {each.key: 1.0 for each in ascendra.variant_measurements()}
    values["variant 2 LP + 1 HP"] = 1.5
    values["variant 1 LP + 1 HP"] = 1.2
    rows = [(row.case, row.ours) for row in ascendra.variant_rows(values)]
    assert rows == [
        (ascendra.CHAT.name, pytest.approx(50.0)),
        (ascendra.CHAT.name, pytest.approx(50.0)),
        (ascendra.SUMMARIES.name, pytest.approx(20.0)),
        (ascendra.SUMMARIES.name, pytest.approx(20.0)),
    ]


def test_under_overload_all_drop_what_is_late():
    measured = ascendra.overload_measurements()
    assert all(each.experiment.setup.drop_late and each.duration_s == 600 for each in measured)
    values = {each.key: 0.4 for each in measured}
    values["overload 12 ascendra"] = 0.6
    rows = {(row.case, row.metric): row for row in ascendra.overload_rows(values)}
    row = rows["12 requests/s", "times served within the SLOs"]
    assert (row.ours, row.paper) == (pytest.approx(1.5), 1.74)


def test_most_is_won_where_both_baselines_serve_least():
    curves = {case: ascendra.CURVES[case] for case in ascendra.CASES}
    values = {
        f"{curve.key} at {rate:g} requests/s": 0.9
        for lines in curves.values()
        for curve in lines.values()
        for rate in curve.rates
    }
    chat = curves[ascendra.CHAT]
    values[f"{chat['vllm'].key} at 14 requests/s"] = 0.2
    values[f"{chat['sarathi'].key} at 14 requests/s"] = 0.6
    values[f"{chat['vllm'].key} at 10 requests/s"] = 0.0
    row = ascendra.attainment_rows(values)[0]
    assert (row.ours, row.paper) == (pytest.approx(1.5), 1.7)
