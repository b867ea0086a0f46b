"""Pipeline stages in virtual time, and the waits of successive batches."""

from dataclasses import replace

import pytest

from macroserve.core.status import Pool
from macroserve.sim.device import SimRequest
from macroserve.sim.instance import InstanceSpec
from macroserve.sim.results import AT_END
from macroserve.sim.simulation import single_cell
from macroserve.workload.arrivals import Arrival

NUM_STAGES = 4


class Stages:
    """A prompt's token takes a millisecond in each stage, a decode ten in all stages together."""

    num_stages = NUM_STAGES

    def stage_s(self, prefills, num_decodes, context, hidden=0):
        prompts_s = 1e-3 * sum(tokens for tokens, _ in prefills)
        return prompts_s + (0.01 if num_decodes else 0.0)

    def seconds(self, *batch):
        return self.num_stages * self.stage_s(*batch)


@pytest.fixture
def serve(make_config, make_latency, monkeypatch):
    """Times of each request's tokens."""
    tokens = {}
    emit = SimRequest.emit

    def recording(self, at_s):
        tokens.setdefault(self.request.request_id, []).extend(at_s)
        emit(self, at_s)

    monkeypatch.setattr(SimRequest, "emit", recording)

    def run(*arrivals, strategy="vllm"):
        config = replace(make_config(strategy), pool=Pool.LP)
        stages = Stages()
        engine = InstanceSpec(config, stages.seconds, make_latency, pipeline=stages)
        single_cell(engine, 1).serve([Arrival(*each) for each in arrivals], stop=AT_END)
        return [tokens[f"request-{index}"] for index in range(len(arrivals))]

    return run


def test_prompt_passes_all_stages_before_its_first_token(serve):
    (tokens,) = serve((0.0, 100, 1))
    # The first stage is done with it after four micro-batches, the last three of them later.
    assert tokens == pytest.approx([0.7])


def test_decodes_behind_a_prompt_wait_for_it_in_every_stage(serve):
    (tokens,) = serve((0.0, 100, 4))
    first, second, third, fourth = tokens
    assert second - first == pytest.approx(0.01), "the last stage goes on at once"
    assert third - second == pytest.approx(0.04)
    assert fourth - third == pytest.approx(0.04)


def test_equal_batches_leave_no_bubble_in_the_pipeline(serve):
    """Chunked prefill aims at this (Sarathi): here two prompts have one length."""
    first, second = serve((0.0, 100, 1), (0.1, 100, 1))
    assert second[0] - first[0] == pytest.approx(0.4)


def test_prompt_in_an_idle_pipeline_does_not_wait(serve):
    _, second = serve((0.0, 100, 1), (9.0, 20, 1))
    assert second[0] - 9.0 == pytest.approx(7 * 0.02)
