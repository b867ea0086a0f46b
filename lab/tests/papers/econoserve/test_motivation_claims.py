"""Claims of the paper's motivation (section 2.2, figure 1) in the simulator: each test fails if a
difference changes its sign.

All are of OPT-13B on ShareGPT, with the lengths of all responses known. Claims of the opposite sign
here are in ``test_opposite_signs.py``.
"""

import pytest
from lab_support.claims.motivation import VLLM, served

from macroserve_lab.papers.measurements import Metric


@pytest.mark.parametrize("name", ["orca", "srtf", "fastserve"])
def test_max_allocation_falls_behind_vllm(name: str) -> None:
    """Figures 1a to 1e: fewer requests served, less of the cache used, smaller batches, longer
    completion."""
    ours, vllm = served(name), served(VLLM)
    assert Metric.THROUGHPUT.of(ours) < 0.3 * Metric.THROUGHPUT.of(vllm)
    assert ours.kv_use < 0.2 * vllm.kv_use
    assert Metric.FORWARD_SIZE.of(ours) < Metric.FORWARD_SIZE.of(vllm)
    assert ours.completion_s > 4 * vllm.completion_s


def test_block_allocation_fails_for_most_requests() -> None:
    """Figure 1d: 74 and 67 % of the requests of vLLM and Sarathi."""
    assert Metric.PREEMPTIONS.of(served(VLLM)) > 0.5
    assert Metric.PREEMPTIONS.of(served("sarathi")) > 0.5


@pytest.mark.parametrize("name", ["multires", "sync-coupled", "sync-decoupled"])
def test_exact_allocation_never_fails(name: str) -> None:
    """Figure 1d."""
    assert Metric.PREEMPTIONS.of(served(name)) == 0.0


@pytest.mark.parametrize("name", ["multires", "sync-coupled", "sync-decoupled"])
def test_exact_allocation_leaves_a_part_of_the_cache_unused(name: str) -> None:
    """Section 2.2: 63 to 79 % of the cache holds tokens under SyncDecoupled."""
    assert 0.5 < served(name).kv_use < 0.75


def test_vllm_takes_longer_than_sarathi() -> None:
    """Section 2.2: 29 % longer, with 41 % less throughput."""
    vllm, sarathi = served(VLLM), served("sarathi")
    assert vllm.completion_s > 1.05 * sarathi.completion_s
    assert Metric.THROUGHPUT.of(vllm) < Metric.THROUGHPUT.of(sarathi)


def test_multires_takes_less_time_than_vllm() -> None:
    """Section 2.2: 43 % less."""
    assert served("multires").completion_s < 0.9 * served(VLLM).completion_s


def test_cost_of_preemptions_decides_whether_multires_passes_sarathi() -> None:
    """Section 2.2, 35 % less time: so it is where prompts, and so preempted requests, take longer
    to compute, and not at a rate without preemptions."""
    slow, fast = (
        [served(name, *how).completion_s for name in ("multires", "sarathi")]
        for how in ((3.2, 0.25), (2.5, 1.0))
    )
    assert slow[0] < 0.8 * slow[1]
    assert fast[0] > 1.05 * fast[1]


def test_groups_take_longer_than_the_nearest_requests() -> None:
    """Figure 1e: SyncCoupled and MultiRes."""
    assert served("sync-coupled").completion_s > 1.1 * served("multires").completion_s


@pytest.mark.parametrize("name", ["multires", "sync-coupled", "sarathi"])
def test_most_steps_end_no_response(name: str) -> None:
    """Figure 1f: so that few prompts can be added where each waits for a request to end."""
    assert Metric.WITHOUT_END.of(served(name)) > 0.85
