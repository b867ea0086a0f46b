"""The appendix has the pairs of a model and a data set that section 8 leaves out."""

import pytest

from macroserve_lab.papers.ascendra import figures
from macroserve_lab.papers.ascendra.cases import APPENDED, CASES


def test_appendix_cases_are_the_other_pairs_with_their_targets():
    pairs = {(case.model, case.workload): case.slo for case in (*CASES, *APPENDED)}
    assert len(pairs) == 3 * 2
    for (model, workload), slo in pairs.items():
        loose = {"ShareGPT4": 1.0, "LongBench": 2.5}[workload] + 0.5 * (model == "Qwen-14B")
        assert (slo.ttft_s, slo.tpot_s) == (loose, 0.15)


def test_appendix_gains_and_scales_are_of_its_own_cases():
    measured = figures.APPENDIX.measurements
    assert len({each.key for each in measured}) == len(measured) == 3 * 4 + 3 * 4 * 11
    case = APPENDED[0].name
    values = {each.key: 0.9 for each in measured}
    values |= {f"appendix {case} ascendra": 5.0, f"appendix {case} sarathi": 4.0}
    values[f"strictness {case} ascendra 0.5"] = 0.8
    rows = {(row.case, row.strategy, row.metric): row.ours for row in figures.APPENDIX.rows(values)}
    assert rows[case, "ascendra over sarathi", "gain in %"] == pytest.approx(25.0)
    assert rows[case, "ascendra", "strictest scale"] == 0.707
    assert {panel.title.split(", ")[0] for panel in figures.APPENDIX.panels(values)} == {
        "Mistral-7B",
        "Llama3.1-8B",
        "Qwen-14B",
    }
