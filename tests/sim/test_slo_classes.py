"""Classes of requests help those that cannot wait, beyond the rate that an instance bears."""

import pytest

from macroserve.core.request import Slo
from macroserve.core.slo_class import SloClass
from macroserve.core.strategies import STRATEGIES
from macroserve.sim.experiment import Experiment
from macroserve.sim.hardware.devices import DEVICES
from macroserve.sim.hardware.links import LINKS
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.results import AT_END, RunResult
from macroserve.sim.scenario import ClusterSpec, Scenario
from macroserve.workload.class_mix import ClassMix
from macroserve.workload.datasets import AZURE_CONVERSATIONS

INTERACTIVE, BATCH = Slo(1.0, 0.05), Slo(30.0, 0.5)


def served(batch: Slo, rate: float) -> RunResult:
    """Return the result of half interactive and half batch requests on one A100."""
    classes = ClassMix(
        (
            SloClass(name="interactive", slo=INTERACTIVE, share=0.5),
            SloClass(name="batch", slo=batch, share=0.5),
        )
    )
    cluster = ClusterSpec(MODELS["Mistral-7B"], DEVICES["A100-80GB"], LINKS["pcie4"], 1, 1)
    scenario = Scenario(cluster, STRATEGIES["unified"], INTERACTIVE)
    return Experiment(scenario, AZURE_CONVERSATIONS, classes=classes).serve(rate, 40.0, stop=AT_END)


def attainment(result: RunResult, name: str) -> float:
    ended = result.ended_by_class[name]
    return ended.attained / ended.finished


def test_interactive_requests_beyond_the_knee_attain_more_when_others_may_wait():
    alike, apart = served(INTERACTIVE, 16.0), served(BATCH, 16.0)
    assert 0.5 < attainment(alike, "interactive") < 0.7
    assert attainment(apart, "interactive") > 1.3 * attainment(alike, "interactive")
    assert attainment(apart, "batch") > 0.5


@pytest.mark.parametrize("name", ["interactive", "batch"])
def test_every_class_attains_its_targets_where_the_instances_bear_the_load(name):
    assert attainment(served(BATCH, 8.0), name) > 0.98
