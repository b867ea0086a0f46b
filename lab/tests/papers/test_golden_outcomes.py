"""Equal seeds give equal outcomes. A change that alters one on purpose raises the simulator's
version."""

import json
from pathlib import Path

import pytest
from lab_support.golden import CASES, record

from macroserve.sim import SIMULATOR_VERSION

GOLDEN = json.loads(Path(__file__).with_name("golden_outcomes.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_outcome_of_a_seed_is_as_recorded(name: str) -> None:
    assert record(CASES[name]()) == GOLDEN["outcomes"][name]


def test_recorded_outcomes_are_of_this_version_and_complete() -> None:
    assert GOLDEN["simulator_version"] == SIMULATOR_VERSION
    assert GOLDEN["outcomes"].keys() == CASES.keys()
