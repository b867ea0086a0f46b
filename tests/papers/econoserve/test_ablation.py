"""The ablation reports the time that each part of EconoServe saves."""

from dataclasses import replace

import pytest

from macroserve.core.strategies import STRATEGIES
from macroserve.papers.econoserve import ablation


def test_ablation_of_each_part_reports_the_time_that_it_saves():
    measured = {each.key: each for each in ablation.measurements()}
    strategies = {
        name: next(
            m for key, m in measured.items() if key.endswith(f" {name}")
        ).experiment.scenario.strategy
        for name in ablation.ABLATED
    }
    assert len(measured) == 3 * len(strategies) == 3 * 5
    for before, after, changed in (
        ("coupled", "decoupled", ("batch", "queues_responses")),
        ("decoupled", "synced", ("group_by_length",)),
        ("synced", "ordered", ("ordering",)),
        ("ordered", "with all", ("kv_lending",)),
    ):
        with_part = {name: getattr(strategies[after], name) for name in changed}
        assert strategies[before] != strategies[after] == replace(strategies[before], **with_part)
    assert strategies["with all"] == STRATEGIES["econoserve"]
    assert strategies["coupled"].exact_kv and not strategies["coupled"].queues_responses
    times_s = {"with all": 6.0, "ordered": 8.0, "synced": 10.0, "decoupled": 16.0, "coupled": 20.0}
    values = {
        f"{curve.key} at {rate:g} requests/s": next(
            time_s for name, time_s in times_s.items() if curve.key.endswith(f" {name}")
        )
        for curve in measured.values()
        for rate in curve.rates
    }
    found = {(r.case, r.strategy): (r.ours, r.paper) for r in ablation.rows(values)}
    for part, ours, paper in (
        ("decoupling", 20.0, 28.0),
        ("synced batching", 37.5, 19.0),
        ("ordering", 20.0, 7.0),
        ("KV pipelining", 25.0, 29.0),
    ):
        assert found["OPT-13B, all traces", part] == (pytest.approx(ours), paper)
        assert found["OPT-13B, BookCorpus", part] == (pytest.approx(ours), None)
