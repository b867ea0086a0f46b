"""Rows with a paper's figure and ours."""

import pytest

from macroserve_lab.papers.figure import Row


@pytest.mark.parametrize(
    ("ours", "paper", "ratio", "is_off"),
    [
        (3.0, 2.0, 1.5, True),
        (2.5, 2.0, 1.25, False),
        (1.5, 2.0, 0.75, False),
        (1.0, 2.0, 0.5, True),
        (-2.0, 2.0, -1.0, True),
        (3.0, None, None, False),
        (3.0, 0.0, None, False),
    ],
)
def test_row_without_a_figure_of_the_paper_has_no_ratio(ours, paper, ratio, is_off):
    row = Row("c", "s", "m", ours, paper)
    assert (row.ratio, row.is_off) == (ratio, is_off)
