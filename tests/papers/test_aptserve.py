"""Apt-Serve's figures: the cases, the levels, and what stands beside what."""

from dataclasses import replace

import pytest

from macroserve.core.batch import BatchResult
from macroserve.core.request import Request
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.papers import aptserve
from macroserve.sim.hardware.step_time import StepTime
from macroserve.sim.results import as_aptserve


def test_aptserve_measurements_judge_as_the_paper_and_fit_the_devices():
    measured = [*aptserve.throughput_measurements(), *aptserve.ablation_measurements()]
    keys = [each.key for each in measured]
    assert len(keys) == len(set(keys))
    for each in measured:
        experiment = each.experiment
        assert experiment.scenario.slo_rule is as_aptserve
        cluster = experiment.scenario.cluster
        assert cluster.device.name == "A100-40GB" and cluster.num_instances == 1
        assert cluster.num_kv_tokens > 2048
        config = cluster.instance_spec(experiment.scenario.strategy, experiment.scenario.slo).config
        assert config.max_model_len == 2048


def test_aptserve_rates_are_compared_case_by_case():
    values = {each.key: 2.0 for each in aptserve.throughput_measurements()}
    for key in values:
        if key.endswith(" prefill-first"):
            values[key] = 1.0 if "HumanEval" in key else 0.5
    rows = {(row.case, row.strategy): row for row in aptserve.throughput_rows(values)}
    row = rows["90 %, all cases", "aptserve over prefill-first"]
    assert (row.ours, row.paper) == (pytest.approx((2 + 4 + 4) / 3), 2.3)
    assert rows["60 %, all cases", "aptserve over fastgen"].ours == pytest.approx(1.0)
    row = rows["90 %, at most", "aptserve over prefill-first"]
    assert (row.ours, row.paper) == (pytest.approx(4.0), 4.0)


def test_aptserve_ablation_has_all_cells_of_both_tables():
    values = {each.key: 0.5 for each in aptserve.ablation_measurements()}
    rows = aptserve.ablation_rows(values)
    printed = [row for row in rows if row.paper is not None]
    assert len(printed) == 12 * 3
    first = printed[0]
    assert (first.strategy, first.paper, first.ours) == ("aptserve, KV only", 99.5, 50.0)
    assert {row.paper for row in printed if row.strategy == "aptserve, FCFS"} >= {26.4, 4.2}


def test_aptserve_engine_takes_the_time_that_the_paper_gives():
    """Section 6.6: about 120 ms for a decode iteration of 50 requests."""
    experiment = aptserve.ablation_measurements()[0].experiment
    cluster = experiment.scenario.cluster
    step = StepTime(cluster.shape, cluster.device, cluster.link, aptserve.PAPERS_HOST)
    assert step.seconds([], 50, 50 * 250) == pytest.approx(0.12, rel=0.05)


def _fcfs_scheduler(num_blocks: int, *prompts: int, num_output: int) -> InstanceScheduler:
    """Return the scheduler of an instance in order of arrival; ``prompts`` are their tokens."""
    scenario = aptserve.experiment("OPT-13B", "ShareGPT", "aptserve, FCFS").scenario
    spec = scenario.cluster.instance_spec(scenario.strategy, scenario.slo)
    scheduler = InstanceScheduler(replace(spec.config, num_blocks=num_blocks), spec.latency())
    for index, num_tokens in enumerate(prompts):
        request = Request(f"r{index}", float(index), num_tokens, num_output, scenario.slo)
        assert scheduler.add_request(request, 9.0) is None
    return scheduler


def _began(num_blocks: int, *prompts: int) -> list[tuple[str, bool]]:
    """Return the prompts that begin at once, and whether each has hidden states."""
    batch = _fcfs_scheduler(num_blocks, *prompts, num_output=16).schedule(9.0)
    return [(prefill.request_id, prefill.hidden) for prefill in batch.prefills]


def test_fcfs_with_apt_serves_caches_hides_what_does_not_fit_otherwise() -> None:
    # A prompt of 112 tokens takes eight blocks with those of its first tokens, or four.
    assert _began(30, 112, 112, 112) == [("r0", False), ("r1", False), ("r2", False)]
    assert _began(20, 112, 112, 112) == [("r0", False), ("r1", False), ("r2", True)]
    assert _began(12, 112, 112, 16) == [("r0", False), ("r1", True)]


def test_fcfs_with_apt_serves_caches_lets_nobody_pass() -> None:
    assert _began(30, 112, 400, 16) == [("r0", False), ("r1", True), ("r2", False)]
    assert _began(30, 288, 400, 16) == [("r0", False)]


def test_fcfs_with_apt_serves_caches_preempts_the_latest_for_an_iteration() -> None:
    scheduler = _fcfs_scheduler(20, 112, 112, num_output=100)
    for step in range(100):
        batch = scheduler.schedule(now := 9.0 + step)
        if batch.preempted:
            break
        prefilled = {prefill.request_id: prefill.num_tokens for prefill in batch.prefills}
        emitted = dict.fromkeys(prefilled, 1)
        result = BatchResult(1.0, prefilled, emitted, decoded=len(batch.decodes) and 1)
        scheduler.update(batch, result, now + 1.0)
    assert (batch.preempted, batch.decodes, batch.prefills) == (("r1",), ("r0",), ())
