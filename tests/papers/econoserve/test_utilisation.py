"""The figure reports how full the cache is under each strategy."""

import pytest

from macroserve.core.strategy import Transfer
from macroserve.papers.econoserve import utilisation
from macroserve.sim.results import AT_END


def test_utilization_is_compared_by_the_mean_of_all_rates():
    values = {}
    for curve in utilisation.measurements():
        most = 0.9 if curve.key.endswith("econoserve") else 0.7
        values |= {f"{curve.key} at {rate:g} requests/s": most for rate in utilisation.RATES[1:]}
        values[f"{curve.key} at {utilisation.RATES[0]:g} requests/s"] = 0.1
    rows = {(row.case, row.strategy): row for row in utilisation.rows(values)}
    row = rows["OPT-13B, ShareGPT, vLLM's", "econoserve over prefill-first"]
    share = (len(utilisation.RATES) - 1) / len(utilisation.RATES)
    assert (row.ours, row.paper) == (pytest.approx(20 * share), 27.0)
    assert len([row for row in rows.values() if row.paper is not None]) == 3 * 3


def test_distserve_utilization_has_prefills_on_another_machine():
    scenarios = {
        curve.key: curve.experiment.scenario
        for curve in utilisation.measurements()
        if curve.key.endswith("distserve")
    }
    assert len(scenarios) == 3
    for scenario in scenarios.values():
        topology = scenario.cluster.topology
        assert scenario.strategy.transfer is Transfer.NETWORK
        assert scenario.cluster.num_instances == 2
        assert topology.node(0) != topology.node(1)


def test_cache_utilization_rises_with_the_rate():
    curve = next(c for c in utilisation.measurements() if c.key == "utilisation OPT-13B econoserve")
    shares = [curve.experiment.serve(rate, 20.0, stop=AT_END).kv_use for rate in (0.5, 2.0, 6.0)]
    assert 0.0 < shares[0] < shares[1] < shares[2] < 1.0
