"""Ascendra's curves: where the most is won."""

import pytest

from macroserve_lab.papers.ascendra import attainment
from macroserve_lab.papers.ascendra.cases import CASES, CHAT


def test_largest_gain_is_where_both_baselines_serve_least():
    curves = {case: attainment.CURVES[case] for case in CASES}
    values = {
        f"{curve.key} at {rate:g} requests/s": 0.9
        for lines in curves.values()
        for curve in lines.values()
        for rate in curve.rates
    }
    chat = curves[CHAT]
    values[f"{chat['prefill-first'].key} at 14 requests/s"] = 0.2
    values[f"{chat['sarathi'].key} at 14 requests/s"] = 0.6
    values[f"{chat['prefill-first'].key} at 10 requests/s"] = 0.0
    row = attainment.rows(values)[0]
    assert (row.ours, row.paper) == (pytest.approx(1.5), 1.7)
