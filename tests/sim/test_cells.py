"""Several cells under shares of one load."""

import pytest

from macroserve.core.request import Slo
from macroserve.core.strategy import STRATEGIES
from macroserve.sim import cells
from macroserve.sim.arrivals import Arrival
from macroserve.sim.deployment import Deployment
from macroserve.sim.hardware.devices import A100_80GB
from macroserve.sim.hardware.links import PCIE_4
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.setup import Setup


@pytest.mark.parametrize(
    ("num_instances", "most", "expected"),
    [(3, 4, [3]), (4, 4, [4]), (5, 4, [3, 2]), (12, 4, [4, 4, 4]), (13, 4, [4, 3, 3, 3])],
)
def test_as_few_cells_as_hold_all_instances(num_instances, most, expected):
    assert cells.sizes(num_instances, most) == expected


SETUP = Setup(
    Deployment(MODELS["Mistral-7B"], A100_80GB, PCIE_4, 1, 3), STRATEGIES["vllm"], Slo(1.0, 0.1)
)


def test_every_request_that_counts_falls_to_one_cell():
    arrivals = [Arrival(0.1 * i, 100 + i, 5) for i in range(60)]
    outcome = cells.serve(SETUP, arrivals, [2, 1], num_before=10, to_the_end=True)
    prompts = sorted(verdict.num_prompt_tokens for verdict in outcome.verdicts)
    assert prompts == list(range(110, 160))
    assert outcome.requests == outcome.attained == 50


def test_a_cell_that_misses_the_goal_is_the_last():
    arrivals = [Arrival(0.001 * i, 4000, 5) for i in range(600)]
    outcome = cells.serve(SETUP, arrivals, [1, 1], goal=0.9)
    assert outcome.decided and outcome.attainment < 0.9
    assert outcome.requests < 300
