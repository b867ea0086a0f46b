"""EconoServe's figures: the cases, and what stands beside what."""

import pytest

from macroserve.sim.papers import econoserve


def test_every_case_of_the_paper_is_measured_with_its_memory():
    measured = econoserve.rate_measurements()
    assert len({each.key for each in measured}) == len(measured) == 3 * 3 * 7
    for each in measured:
        deployment = each.experiment.setup.deployment
        config = deployment.engine(each.experiment.setup.strategy, each.experiment.setup.slo).config
        held = config.num_blocks * config.block_size * deployment.shape.kv_bytes_per_token
        assert held == pytest.approx(deployment.kv_bytes, rel=0.01)
        assert config.block_size == 32


def test_the_papers_predictor_is_as_good_as_the_paper_says():
    told = {each.key: each.experiment.foresight for each in econoserve.rate_measurements()}
    case = "rate OPT-13B BookCorpus"
    assert told[f"{case} econoserve"] == told[f"{case} econoserve, no lending"] == 0.698
    assert told[f"{case} econoserve, an oracle"] == 1.0
    assert told[f"{case} econoserve, from prompts alike"] is told[f"{case} vllm"] is None


def test_rates_are_compared_with_the_middle_of_the_papers_range():
    values = {each.key: 1.0 for each in econoserve.rate_measurements()}
    values["rate OPT-13B ShareGPT, vLLM's econoserve"] = 3.0
    values["rate OPT-13B ShareGPT, vLLM's sarathi"] = 2.0
    rows = {(row.case, row.strategy): row for row in econoserve.rate_rows(values)}
    case = "OPT-13B, ShareGPT, vLLM's"
    over_vllm, over_sarathi = (rows[case, f"econoserve over {n}"] for n in ("vllm", "sarathi"))
    assert (over_vllm.ours, over_vllm.paper) == (pytest.approx(3.0), pytest.approx(3.25))
    assert (over_sarathi.ours, over_sarathi.paper) == (pytest.approx(1.5), pytest.approx(1.75))


def test_each_part_is_told_by_the_time_that_it_saves():
    measured = {each.key: each for each in econoserve.ablation_measurements()}
    assert len(measured) == 3 * 3
    strategies = {key.split()[-1]: m.experiment.setup.strategy for key, m in measured.items()}
    assert strategies["all"].lending and not strategies["lending"].lending
    assert strategies["coupled"].exact_kv and not strategies["coupled"].queues_responses
    times_s = {"with all": 6.0, "no lending": 8.0, "coupled": 10.0}
    values = {
        f"{curve.key} at {rate:g} requests/s": next(
            time_s for name, time_s in times_s.items() if curve.key.endswith(name)
        )
        for curve in measured.values()
        for rate in curve.rates
    }
    found = {(r.case, r.strategy): (r.ours, r.paper) for r in econoserve.ablation_rows(values)}
    for part, ours, paper in (("decoupling", 20.0, 28.0), ("KV pipelining", 25.0, 29.0)):
        assert found["OPT-13B, all traces", part] == (pytest.approx(ours), paper)
        assert found["OPT-13B, BookCorpus", part] == (pytest.approx(ours), None)
