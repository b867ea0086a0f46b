"""Rates at equal latency: the cases, and the compared values."""

import pytest

from macroserve_lab.papers.econoserve import figures


def test_rate_cases_of_the_paper_are_measured_with_their_memory():
    measured = figures.RATE.measurements
    assert len({each.key for each in measured}) == len(measured) == 3 * 3 * 9
    for each in measured:
        cluster = each.experiment.scenario.cluster
        config = cluster.instance_spec(
            each.experiment.scenario.strategy, each.experiment.scenario.slo
        ).config
        held = config.num_blocks * config.block_size * cluster.shape.kv_bytes_per_token
        assert held == pytest.approx(cluster.kv_bytes, rel=0.01)
        assert config.block_size == 32


def test_econoserve_foresight_is_the_accuracy_of_the_papers_predictor():
    told = {each.key: each.experiment.foresight for each in figures.RATE.measurements}
    case = "rate OPT-13B BookCorpus"
    assert told[f"{case} econoserve"] == told[f"{case} econoserve, no lending"] == 0.698
    assert told[f"{case} econoserve, an oracle"] == 1.0
    assert told[f"{case} econoserve, from prompts alike"] is told[f"{case} prefill-first"] is None


def test_rates_are_compared_with_the_middle_of_the_papers_range():
    values = {each.key: 1.0 for each in figures.RATE.measurements}
    values["rate OPT-13B ShareGPT, vLLM's econoserve"] = 3.0
    values["rate OPT-13B ShareGPT, vLLM's sarathi"] = 2.0
    rows = {(row.case, row.strategy): row for row in figures.RATE.rows(values)}
    case = "OPT-13B, ShareGPT, vLLM's"
    over_vllm, over_sarathi = (
        rows[case, f"econoserve over {n}"] for n in ("prefill-first", "sarathi")
    )
    assert rows[case, "econoserve over orca"].ours == pytest.approx(3.0)
    assert rows[case, "econoserve over orca"].paper == pytest.approx(43.0)
    assert rows[case, "econoserve over distserve"].paper == pytest.approx(1.17)
    assert (over_vllm.ours, over_vllm.paper) == (pytest.approx(3.0), pytest.approx(3.25))
    assert (over_sarathi.ours, over_sarathi.paper) == (pytest.approx(1.5), pytest.approx(1.75))
