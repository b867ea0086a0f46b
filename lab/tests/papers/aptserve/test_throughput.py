"""Apt-Serve's rates: the compared values."""

import pytest

from macroserve_lab.papers.aptserve import figures


def test_aptserve_rates_are_compared_case_by_case():
    values = {each.key: 2.0 for each in figures.THROUGHPUT.measurements}
    for key in values:
        if key.endswith(" prefill-first"):
            values[key] = 1.0 if "HumanEval" in key else 0.5
    rows = {(row.case, row.strategy): row for row in figures.THROUGHPUT.rows(values)}
    row = rows["90 %, all cases", "aptserve over prefill-first"]
    assert (row.ours, row.paper) == (pytest.approx((2 + 4 + 4) / 3), 2.3)
    assert rows["60 %, all cases", "aptserve over fastgen"].ours == pytest.approx(1.0)
    row = rows["90 %, at most", "aptserve over prefill-first"]
    assert (row.ours, row.paper) == (pytest.approx(4.0), 4.0)
