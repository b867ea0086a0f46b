"""EcoServe's figures: the cases, and their averages."""

import pytest

from macroserve_lab.papers.ecoserve import cases, figures


def test_ecoserve_cases_of_the_paper_are_all_measured():
    keys = [each.key for each in figures.GOODPUT.measurements]
    assert len(keys) == len(set(keys))
    assert len(cases.CASES) == 2 * 3 * 3
    for case in cases.CASES:
        for level in cases.LEVELS:
            for strategy in cases.STRATEGY_NAMES:
                assert case.key(level, strategy) in keys


def test_ecoserve_deployments_all_have_memory_for_a_cache():
    for each in figures.GOODPUT.measurements:
        for experiment in (search.experiment for search in each.searches):
            cluster = experiment.scenario.cluster
            assert cluster.num_kv_tokens > 8192
            assert cluster.num_instances * cluster.ranks in (16, 32)


def test_ecoserve_gains_are_averaged_over_cases():
    values = {each.key: 1.0 for each in figures.GOODPUT.measurements}
    for case in cases.CASES:
        for level in cases.LEVELS:
            gain = 3.0 if case.cluster == "L20" else 2.0
            for strategy, factor in (
                ("prefill-first", 8.0),
                ("sarathi", 10.0),
                ("ecoserve", 8.0 * gain),
            ):
                values[case.key(level, strategy)] = factor
    rows = {(row.case, row.strategy): row for row in figures.GOODPUT.rows(values)}
    over_vllm = rows["P90, all cases", "ecoserve over prefill-first"]
    assert (over_vllm.ours, over_vllm.paper) == (pytest.approx(150.0), 83.76)
    assert rows["P90, L20", "ecoserve over NoDG"].ours == pytest.approx((200 + 140) / 2)
    assert rows["P90, A800", "ecoserve over NoDG"].ours == pytest.approx((100 + 60) / 2)
    by_percentile = rows["P90, all cases", f"{cases.BY_PERCENTILE} over prefill-first"]
    assert (by_percentile.ours < 0, by_percentile.paper) == (True, 83.76)


def test_ecoserve_at_p99_tells_how_many_cases_nobody_holds():
    """Section 4.2: some baselines cannot attain P99; the paper prints no figure of it."""
    values = {each.key: 8.0 for each in figures.GOODPUT.measurements}
    for case in cases.CASES:
        values[case.key("P99", "ecoserve")] = 24.0
        if case.workload == "ShareGPT":
            values[case.key("P99", "mooncake")] = 0.0
    rows = {(row.case, row.strategy): row for row in figures.GOODPUT.rows(values)}
    over_vllm = rows["P99, all cases", "ecoserve over prefill-first"]
    assert (over_vllm.ours, over_vllm.paper) == (pytest.approx(200.0), None)
    assert over_vllm.is_summary
    assert rows["P99, cases without goodput", "mooncake"].ours == 6
    assert rows["P99, cases without goodput", "sarathi"].ours == 0
    assert rows["P99, L20, Llama-30B, ShareGPT", "ecoserve"].ours == 24.0


def test_ecoserve_holds_more_than_both_nodg_systems_at_p99_of_long_prompts():
    """Section 4.2: the gap widens as the SLO attainment level rises."""
    case, rate = cases.Case("L20", "CodeLlama-34B", "LongBench"), 4.0
    ours, *others = (
        cases.experiments(case, variant)[0].serve(rate, cases.DURATION_S["LongBench"]).attainment
        for variant in ("ecoserve", *cases.NODG)
    )
    assert max(others) < cases.LEVELS["P99"] <= ours
