"""Rows: a paper's figure beside ours."""

import pytest

from macroserve.sim.papers.figure import Row


@pytest.mark.parametrize(("ours", "paper", "ratio"), [(3.0, 2.0, 1.5), (3.0, None, None)])
def test_a_ratio_needs_a_figure_of_the_papers(ours, paper, ratio):
    assert Row("f", "c", "s", "m", ours, paper).ratio == ratio
