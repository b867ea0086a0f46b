"""Apt-Serve's ablation: the cells of both tables."""

from macroserve_lab.papers.aptserve import figures


def test_aptserve_ablation_has_all_cells_of_both_tables():
    values = {each.key: 0.5 for each in figures.ABLATION.measurements}
    rows = figures.ABLATION.rows(values)
    printed = [row for row in rows if row.paper is not None]
    assert len(printed) == 12 * 3
    first = printed[0]
    assert (first.strategy, first.paper, first.ours) == ("aptserve, KV only", 99.5, 50.0)
    assert {row.paper for row in printed if row.strategy == "aptserve, FCFS"} >= {26.4, 4.2}
