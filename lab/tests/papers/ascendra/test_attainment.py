"""Ascendra's curves: the rate of the largest gain."""

import pytest

from macroserve_lab.papers.ascendra import figures
from macroserve_lab.papers.ascendra.cases import CHAT


def test_largest_gain_is_where_both_baselines_serve_least():
    values = {
        f"{curve.key} at {rate:g} requests/s": 0.9
        for curve in figures.CURVES.values()
        for rate in curve.rates
    }
    chat = {name: figures.CURVES[CHAT, name] for name in figures.BASELINES}
    values[f"{chat['prefill-first'].key} at 14 requests/s"] = 0.2
    values[f"{chat['sarathi'].key} at 14 requests/s"] = 0.6
    values[f"{chat['prefill-first'].key} at 10 requests/s"] = 0.0
    row = figures.ATTAINMENT.rows(values)[0]
    assert (row.ours, row.paper) == (pytest.approx(1.5), 1.7)
