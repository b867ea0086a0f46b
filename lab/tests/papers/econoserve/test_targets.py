"""EconoServe's requests have targets in the paper's experiments, as its ordering reads them."""

import pytest

from macroserve.core.request import Request
from macroserve.core.scheduler.responses import jct_target_s
from macroserve.core.scheduler.sequence import Sequence
from macroserve_lab.papers.econoserve.cases import (
    MODELS,
    SCALE,
    SERVED,
    TRACES,
    VARIANTS,
    alone_s,
    experiment,
    targets,
)


def test_target_of_a_response_is_twice_its_time_alone():
    """The target is SLO-scale x (t_p + t_g x l_g), section 4.1."""
    prompt_s, token_s = alone_s(MODELS[0], TRACES[1])
    slo = targets(MODELS[0], TRACES[1])
    seq = Sequence(Request("a", 0.0, 10, 50, slo), 0, 0.0, 50, 0.0, 0.0, 0.0)
    assert jct_target_s(seq) == pytest.approx(SCALE * (prompt_s + 50 * token_s))
    assert SCALE == 2.0


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_of_econoserve_alone_order_by_target(name):
    scenario = experiment(MODELS[0], TRACES[0], VARIANTS[name]).scenario
    has_targets = name.startswith("econoserve")
    assert scenario.slo == (targets(MODELS[0], TRACES[0]) if has_targets else SERVED)
