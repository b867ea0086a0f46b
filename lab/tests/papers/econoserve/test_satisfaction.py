"""EconoServe's share of requests in time is compared with that of each other system."""

import pytest

from macroserve_lab.papers.econoserve import figures
from macroserve_lab.papers.econoserve.cases import MODELS, TRACES
from macroserve_lab.papers.econoserve.completed import Completed


def test_satisfaction_is_measured_by_completion_at_one_rate_for_all_systems():
    measured = figures.SHARES
    assert len({each.key for each in measured.values()}) == len(measured) == 3 * 3 * 6
    for (model, trace, name), each in measured.items():
        assert each.experiment.scenario.slo_rule == Completed.of(model, trace)
        assert each.rate == measured[model, trace, "econoserve"].rate
        instances = each.experiment.scenario.cluster.num_instances
        assert instances == (2 if name == "distserve" else 1)
    assert measured[MODELS[0], TRACES[0], "econoserve, an oracle"].experiment.foresight == 1.0


def test_satisfaction_compares_the_means_of_the_traces():
    values = {each.key: 0.6 for each in figures.SATISFACTION.measurements}
    values["satisfaction OPT-13B Alpaca econoserve"] = 0.9
    values["satisfaction OPT-13B BookCorpus sarathi"] = 0.2
    rows = {(row.case, row.strategy): row for row in figures.SATISFACTION.rows(values)}
    assert len([row for row in rows.values() if row.paper is not None]) == 3 * 5
    row = rows["OPT-13B, all traces", "econoserve over sarathi"]
    assert (row.ours, row.paper) == (pytest.approx(100 * (2.1 / 1.4 - 1)), 42.0)
    row = rows["OPT-13B, all traces", "econoserve over econoserve, an oracle"]
    assert (row.ours, row.paper) == (pytest.approx(100 * (2.1 / 1.8 - 1)), -2.0)
    assert rows["OPT-13B, BookCorpus", "sarathi"].ours == 0.2


def test_satisfaction_over_a_system_that_serves_none_in_time_is_shown():
    values = {each.key: 0.5 for each in figures.SATISFACTION.measurements}
    values |= {key: 0.0 for key in values if key.endswith(" orca")}
    rows = {(row.case, row.strategy): row for row in figures.SATISFACTION.rows(values)}
    assert rows["OPT-13B, all traces", "econoserve over orca"].ours == pytest.approx(4900.0)
