"""Bystanders notice neither a request that kills engines nor a path that goes silent."""

from pathlib import Path

import pytest
from support.deployment import manifest
from support.pods import PORT, running

from macroserve_lab.bench.hostile import partition, poison
from macroserve_lab.bench.hostile.lossy import lossy_path

pytestmark = pytest.mark.integration

PARTITION_S = 25.0
"""Longer than ingresses bear an instance's silence."""


async def test_request_that_kills_engines_takes_three_along_and_no_stream() -> None:
    seen = await poison.measure("emulated", [poison.AFTER_A_TOKEN])
    assert seen["poison_status"] == 500
    assert 0 < seen["poison_engines_lost"] <= 3
    assert seen["poison_streams"] > poison.NUM_BYSTANDERS
    assert seen["poison_streams_broken"] == 0


async def test_streams_of_an_instance_out_of_reach_go_on_within_fifteen_seconds(
    tmp_path: Path,
) -> None:
    document = manifest(instances=3, scheduling={"strategy": "vllm"})
    with running(tmp_path, document, ingresses=1, instances=3) as pods:
        async with lossy_path(f"http://{pods.at(20)}:{PORT}") as path:
            pods.adopt_behind(0, path.url)
            endpoint = f"http://{pods.pods['ingress-0'].address}:{PORT}"
            seen = await partition.observe(endpoint, path, PARTITION_S)
    # As long as an ingress waits for a sign of life: the path was lost indeed.
    assert 10 < seen["partition_gap_s"] <= 15
    assert seen["partition_streams_broken"] == 0
