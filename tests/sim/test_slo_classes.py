"""SLO classes help urgent requests beyond an instance's capacity."""

from dataclasses import replace
from random import Random

import pytest

from macroserve.core.request import Slo
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.shapes import DeviceShape, ModelShape
from macroserve.core.slo_class import SloClass
from macroserve.core.status import Pool
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import Strategy
from macroserve.sim.hardware.devices import DEVICES
from macroserve.sim.hardware.links import LINKS
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.instance import FixedLatencyModel, InstanceSpec
from macroserve.sim.results import AT_END, RunResult
from macroserve.sim.scenario import ClusterSpec, Scenario
from macroserve.sim.simulation import single_cell
from macroserve.workload.class_mix import ClassMix
from macroserve.workload.datasets import AZURE_CONVERSATIONS
from macroserve_lab.arrivals import bursty
from macroserve_lab.experiment import Experiment

pytestmark = pytest.mark.simulation

INTERACTIVE, BATCH = Slo(1.0, 0.05), Slo(30.0, 0.5)
MODEL = ModelShape(6, 512, 8, 8, 64, 1408, 2048)
SLOWNESS = 36.0
"""Coefficient of the latency model with which a token takes 1.5 ms."""


def mix(batch: Slo) -> ClassMix:
    return ClassMix(
        (
            SloClass(name="interactive", slo=INTERACTIVE, share=0.5),
            SloClass(name="batch", slo=batch, share=0.5),
        )
    )


def served(batch: Slo, rate: float, strategy: Strategy = STRATEGIES["unified"]) -> RunResult:
    """Return the result of half interactive and half batch requests on one A100."""
    cluster = ClusterSpec(MODELS["Mistral-7B"], DEVICES["A100-80GB"], LINKS["pcie4"], 1, 1)
    scenario = Scenario(cluster, strategy, INTERACTIVE)
    return Experiment(scenario, AZURE_CONVERSATIONS, classes=mix(batch)).serve(
        rate, 40.0, stop=AT_END
    )


def attainment(result: RunResult, name: str) -> float:
    ended = result.ended_by_class[name]
    return ended.attained / ended.finished


def test_interactive_requests_beyond_the_knee_attain_more_when_others_may_wait():
    alike, apart = served(INTERACTIVE, 16.0), served(BATCH, 16.0)
    assert 0.5 < attainment(alike, "interactive") < 0.7
    assert attainment(apart, "interactive") > 1.3 * attainment(alike, "interactive")
    assert attainment(apart, "batch") > 0.5


def test_resting_responses_leave_both_classes_more():
    none_rests = replace(STRATEGIES["unified"], rests=False)
    rests, apart = served(BATCH, 16.0), served(BATCH, 16.0, none_rests)
    for name in ("interactive", "batch"):
        assert attainment(rests, name) > 1.03 * attainment(apart, name)


def served_slowly(batch: Slo) -> RunResult:
    """Return the result of half interactive and half batch requests on an instance whose batches
    take 15 ms, and 1.5 ms more for each token, as those of a small model on a shared core do."""
    latency = FixedLatencyModel(MODEL, DeviceShape(1e12, 1e12), (0.0, 0.0, 0.0, SLOWNESS, 0.015))
    config = InstanceConfig(
        strategy=STRATEGIES["unified"],
        pool=Pool.LP,
        slo=INTERACTIVE,
        num_blocks=340,
        block_size=32,
        max_num_seqs=64,
        max_batch_tokens=512,
        max_model_len=2048,
    )
    random = Random(0)
    lengths = [
        (max(1, prompt * 15 // 100), max(1, output * 15 // 100))
        for prompt, output in AZURE_CONVERSATIONS.lengths(random)
    ]
    arrivals = mix(batch).applied(bursty(3.2, 1.0, 120.0, lengths, random), 0)
    return single_cell(InstanceSpec.known(config, latency), 1).serve(arrivals, stop=AT_END)


def test_interactive_requests_do_not_wait_for_long_steps_of_others():
    alike, apart = served_slowly(INTERACTIVE), served_slowly(BATCH)
    assert attainment(apart, "interactive") > 1.25 * attainment(alike, "interactive")
    assert attainment(apart, "batch") > attainment(alike, "batch")


@pytest.mark.parametrize("name", ["interactive", "batch"])
def test_every_class_attains_its_targets_where_the_instances_bear_the_load(name):
    assert attainment(served(BATCH, 8.0), name) > 0.98
