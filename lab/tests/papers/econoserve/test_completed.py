"""The rule by which EconoServe's requests are in time."""

import pytest

from macroserve.core.request import Request
from macroserve.sim.device import SimRequest
from macroserve_lab.papers.econoserve.cases import MODELS, SERVED, TRACES
from macroserve_lab.papers.econoserve.completed import Completed


@pytest.mark.parametrize(("scale", "most_s"), [(2.0, 2.0), (0.5, 0.5)])
def test_completed_rule_allows_the_time_alone_times_the_scale(scale, most_s):
    slo_rule = Completed(prompt_s=0.5, token_s=0.01, scale=scale)
    record = SimRequest(Request("a", 100.0, 10, 50, SERVED), 50)
    record.emit((100.0, *[100.0] * 48, 100.0 + most_s))
    assert slo_rule(record)
    record.last_s += 0.001
    assert not slo_rule(record)


def test_completed_rule_time_grows_with_the_model():
    small, large = (Completed.of(model, TRACES[1]) for model in MODELS[::2])
    assert small.scale == large.scale == 2.0
    assert 0.0 < small.token_s < small.prompt_s
    assert small.token_s < large.token_s < 10 * small.token_s
