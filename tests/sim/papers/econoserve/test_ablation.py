"""What each part of EconoServe saves."""

import pytest

from macroserve.sim.papers.econoserve import ablation


def test_each_part_is_told_by_the_time_that_it_saves():
    measured = {each.key: each for each in ablation.measurements()}
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
    found = {(r.case, r.strategy): (r.ours, r.paper) for r in ablation.rows(values)}
    for part, ours, paper in (("decoupling", 20.0, 28.0), ("KV pipelining", 25.0, 29.0)):
        assert found["OPT-13B, all traces", part] == (pytest.approx(ours), paper)
        assert found["OPT-13B, BookCorpus", part] == (pytest.approx(ours), None)
