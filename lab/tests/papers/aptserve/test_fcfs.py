"""Apt-Serve's caches in order of arrival."""

from dataclasses import replace

from macroserve.core.batch import BatchResult
from macroserve.core.request import Request
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve_lab.papers.aptserve.cases import experiment


def _fcfs_scheduler(num_blocks: int, *prompts: int, num_output: int) -> InstanceScheduler:
    """Return the scheduler of an instance in order of arrival; ``prompts`` are their tokens."""
    scenario = experiment("OPT-13B", "ShareGPT", "aptserve, FCFS").scenario
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
