"""A manifest asks for a fleet."""

from typing import Any

import pytest
from support.manifests import emulated

from macroserve.api.manifest import leaves_ratio_open, parse
from macroserve.core.scaling.fleet import DesiredFleet
from macroserve.core.scaling.mitosis import Bounds


@pytest.mark.parametrize(
    ("spec", "ratio"),
    [
        ({}, 0.0),
        ({"priority": {"highPriorityRatio": 0.5}}, 0.5),
        ({"priority": {"highPriorityRatio": 0}}, 0.0),
        # Strategies without pools have no use for a high-priority share.
        ({"scheduling": {"strategy": "vllm"}}, 0.0),
        ({"scheduling": {"strategy": "ecoserve"}, "priority": {"highPriorityRatio": 0.5}}, 0.0),
        ({"scheduling": {"strategy": "ascendra"}}, 1 / 3),
    ],
)
def test_desired_fleet_ratio_follows_the_spec_and_the_strategy(
    spec: dict[str, Any], ratio: float
) -> None:
    assert parse(emulated(**spec)).desired_fleet() == DesiredFleet(
        3, Bounds(2, 4), pytest.approx(ratio)
    )


def test_desired_fleet_with_given_instances_replaces_the_spec() -> None:
    assert parse(emulated()).desired_fleet(instances=7).desired_instances == 7


@pytest.mark.parametrize(
    ("spec", "is_open", "ratio"),
    [
        ({}, True, 0.25),
        ({"scheduling": {"strategy": "ascendra"}}, True, 0.25),
        ({"scheduling": {"strategy": "ecoserve"}}, False, 0.0),
        ({"priority": {"highPriorityRatio": 0.5}}, False, 0.5),
        ({"priority": {"highPriorityRatio": 0}}, False, 0.0),
    ],
)
def test_manifest_with_auto_ratio_and_pools_leaves_the_ratio_open(
    spec: dict[str, Any], is_open: bool, ratio: float
) -> None:
    manifest = parse(emulated(**spec))
    assert leaves_ratio_open(manifest) == is_open
    assert manifest.desired_fleet(auto_ratio=0.25).high_priority_ratio == ratio
