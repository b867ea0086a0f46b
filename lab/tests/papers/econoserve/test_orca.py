"""ORCA runs few requests at once, each with memory for the longest request."""

import pytest

from macroserve.sim.results import AT_END
from macroserve_lab.papers.econoserve.cases import MAX_LENGTH, MODELS, ORCA, TRACES, experiment


@pytest.mark.parametrize(
    ("model", "most"), zip(MODELS, (8, 8, 16), strict=True), ids=lambda each: str(each)
)
def test_orca_batch_fits_with_the_longest_requests(model, most):
    cluster = experiment(model, TRACES[0], ORCA).scenario.cluster
    assert 1 < cluster.max_num_seqs <= most
    assert cluster.max_num_seqs * MAX_LENGTH <= cluster.num_kv_tokens
    if cluster.max_num_seqs < most:
        assert (cluster.max_num_seqs + 1) * MAX_LENGTH > cluster.num_kv_tokens


def test_orca_uses_little_of_the_cache_under_any_load():
    outcome = experiment(MODELS[0], TRACES[1], ORCA).serve(4.0, 10.0, stop=AT_END)
    assert 0.0 < outcome.kv_use < 0.25
