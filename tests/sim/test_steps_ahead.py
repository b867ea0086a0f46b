"""Steps that are decided while the one before runs: who arrives meanwhile joins the step after."""

from dataclasses import replace

import pytest

from macroserve.core.status import Pool
from macroserve.sim.device import SimRequest
from macroserve.sim.instance import InstanceSpec
from macroserve.sim.results import AT_END
from macroserve.sim.simulation import single_cell
from macroserve.workload.arrivals import Arrival

STEP_S = 0.1


@pytest.fixture
def serve(make_config, make_latency, monkeypatch):
    """Serve arrivals in steps of a tenth of a second; return the times of each request's tokens."""
    tokens = {}
    emit = SimRequest.emit

    def recording(self, at_s):
        tokens.setdefault(self.request.request_id, []).extend(at_s)
        emit(self, at_s)

    monkeypatch.setattr(SimRequest, "emit", recording)

    def run(*arrivals, is_ahead=True, strategy="vllm"):
        config = replace(make_config(strategy), pool=Pool.LP)
        spec = InstanceSpec(config, lambda *_: STEP_S, make_latency, is_ahead=is_ahead)
        single_cell(spec, 1).serve([Arrival(*each) for each in arrivals], stop=AT_END)
        return [tokens[f"request-{index}"] for index in range(len(arrivals))]

    return run


@pytest.mark.parametrize(("is_ahead", "first_token_s"), [(False, 0.4), (True, 0.5)])
def test_request_that_arrives_during_a_step_waits_for_the_one_decided(
    serve, is_ahead, first_token_s
) -> None:
    # It arrives in the third of eight steps.
    running, late = serve((0.0, 10, 8), (0.25, 10, 1), is_ahead=is_ahead)
    assert running == pytest.approx([STEP_S * step for step in range(1, 9)])
    assert late == pytest.approx([first_token_s])


def test_request_to_an_idle_instance_starts_at_once(serve) -> None:
    _, late = serve((0.0, 10, 1), (5.0, 10, 1))
    assert late == pytest.approx([5.1])


def test_request_that_arrives_during_the_last_step_starts_after_it(serve) -> None:
    _, late = serve((0.0, 10, 1), (0.05, 10, 2))
    assert late == pytest.approx([0.2, 0.3])


@pytest.mark.parametrize("strategy", ["unified", "ecoserve", "econoserve", "ascendra"])
def test_every_request_ends_under_strategies_of_all_kinds(serve, strategy) -> None:
    arrivals = [(0.07 * index, 50 + 40 * index, 1 + 3 * index) for index in range(20)]
    found = serve(*arrivals, strategy=strategy)
    assert [len(tokens) for tokens in found] == [1 + 3 * index for index in range(20)]
