"""Requests leave an instance before their prefill begins: dropped, offloaded or drained."""

import numpy as np
import pytest

from macroserve.core.batch import HandBackReason, HandedBack
from macroserve.core.request import Slo
from macroserve.core.scheduler.candidates import due_to_offload
from macroserve.core.status import Pool


def test_late_requests_with_drop_late_are_dropped(make_scheduler, make_request):
    scheduler = make_scheduler("vllm", drop_late=True)
    scheduler.add_request(make_request("late", 0.0), 1.05)
    scheduler.add_request(make_request("in time", 0.1), 1.05)
    scheduler.add_request(make_request("streaming", 0.0, streamed=2), 1.05)
    batch = scheduler.schedule(1.05)
    assert batch.handed_back == (HandedBack("late", HandBackReason.DROP),)
    assert [p.request_id for p in batch.prefills] == ["streaming", "in time"]
    status = scheduler.status(1.05)
    assert (status.finished, status.attained) == (1, 0)


def test_late_requests_without_drop_late_stay(make_scheduler, make_request):
    scheduler = make_scheduler("vllm")
    scheduler.add_request(make_request("late", 0.0), 9.0)
    assert scheduler.schedule(9.0).prefills[0].request_id == "late"


def stuffed(make_scheduler, make_request, *, now, **fields):
    """Return a scheduler whose one seat is taken by a long prompt, with requests due from 1 s in
    steps of 0.1."""
    scheduler = make_scheduler("ascendra", max_num_seqs=1, **fields)
    scheduler.add_request(make_request("first", -9.0, prompt=3000), -9.0)
    scheduler.schedule(-9.0)
    for index in range(10):
        scheduler.add_request(make_request(f"r{index}", 0.1 * index, prompt=10), now)
    return scheduler


@pytest.mark.parametrize("pool", Pool)
@pytest.mark.parametrize("offload", [False, True])
def test_offload_hands_back_requests_about_to_miss_their_deadline(
    make_scheduler, make_request, pool, offload
):
    """A full batch takes 0.11 s here: with the threshold, 0.31 s before the deadline."""
    scheduler = stuffed(
        make_scheduler,
        make_request,
        now=1.05,
        pool=pool,
        changes={"offload": offload},
        offload_threshold_s=0.2,
    )
    full_s = scheduler.latency.prefill_s(scheduler.config.max_batch_tokens)
    assert 0.1 < full_s < 0.14
    handed_back = [item.request_id for item in scheduler.schedule(1.05).handed_back]
    # r0 is late already; r1 is due at 1.1, r2 at 1.2, r3 at 1.3.
    expected = ["r1", "r2", "r3"] if offload and pool is Pool.LP else []
    assert handed_back == expected
    assert scheduler.schedule(1.05).handed_back == (), "once a visit"


def test_offload_without_an_hp_instance_hands_back_none(make_scheduler, make_request):
    scheduler = stuffed(make_scheduler, make_request, now=1.05, pool=Pool.LP)
    scheduler.let_offload(False)
    assert scheduler.schedule(1.05).handed_back == ()
    scheduler.let_offload(True)
    assert scheduler.schedule(1.05).handed_back != ()


def test_offload_of_a_long_prompt_is_earlier_by_its_prefill_time(make_scheduler, make_request):
    scheduler = make_scheduler("ascendra", pool=Pool.LP, max_num_seqs=1)
    scheduler.add_request(make_request("first", -9.0, prompt=3000), -9.0)
    scheduler.schedule(-9.0)
    for prompt in (2000, 1000, 10):
        scheduler.add_request(make_request(f"{prompt}", 0.0, prompt=prompt), 0.0)
    offloaded_s = {}
    for now in np.arange(0.0, 1.0, 0.001):
        for item in scheduler.schedule(now).handed_back:
            offloaded_s[item.request_id] = now
    earlier_s = {name: offloaded_s["10"] - at_s for name, at_s in offloaded_s.items()}
    prefill_s = scheduler.latency.batched_prefill_s
    limit = scheduler.config.max_batch_tokens
    assert earlier_s == {
        name: pytest.approx(prefill_s(int(name), limit) - prefill_s(10, limit), abs=0.002)
        for name in ("2000", "1000", "10")
    }


@pytest.mark.parametrize(
    ("num_decodes", "waited_s", "leaves"),
    [(0, 0.2, False), (0, 0.3, True), (50, 0.1, False), (50, 0.2, True)],
)
def test_offload_counts_the_decodes_of_the_batch_to_wait_for(
    make_step, num_decodes, waited_s, leaves
):
    """A batch full of prompts takes 0.53 s, and fifty decodes 0.12 s more; the prefill takes 0.1 s
    of the target's one second."""
    fields = {"pool": Pool.LP, "max_num_seqs": 64}
    step = make_step("ascendra", [0.0] * num_decodes, [600], waited_s=waited_s, **fields)
    found = [seq.request_id for seq in due_to_offload(step.inputs, step.candidates)]
    assert found == (["w0"] if leaves else [])


def test_offload_keeps_requests_that_are_late_everywhere(make_scheduler, make_request):
    scheduler = make_scheduler("ascendra", pool=Pool.LP, max_num_seqs=1)
    scheduler.add_request(make_request("first", -9.0, prompt=3000), -9.0)
    scheduler.schedule(-9.0)
    scheduler.add_request(make_request("huge", 0.0, prompt=2000), 0.8)
    scheduler.add_request(make_request("streaming", 0.0, prompt=20, streamed=3), 0.8)
    assert scheduler.latency.prefill_s(2000) > 0.2
    assert scheduler.schedule(0.8).handed_back == ()


def test_offload_keeps_running_requests(make_scheduler, make_request):
    scheduler = make_scheduler("ascendra", pool=Pool.LP)
    scheduler.add_request(make_request("r", 0.0), 0.9)
    batch = scheduler.schedule(0.9)
    assert batch.prefills and not batch.handed_back


def test_offload_with_triage_hands_back_only_infeasible_requests(make_scheduler, make_request):
    """The seat is free at once, and three of the four prompts can be in time."""
    slo = Slo(0.5, 0.1)
    scheduler = make_scheduler("unified", pool=Pool.LP, max_batch_tokens=512, slo=slo)
    for name, prompt in (("big", 1500), ("a", 150), ("b", 150), ("c", 150)):
        scheduler.add_request(make_request(name, 0.0, prompt=prompt, slo=slo), 0.1)
    batch = scheduler.schedule(0.1)
    assert [p.request_id for p in batch.prefills][:3] == ["a", "b", "c"]
    assert batch.handed_back == () or batch.handed_back[0].request_id == "big"
    assert "big" not in [p.request_id for p in batch.prefills[:-1]]


def test_draining_hands_back_requests_that_have_not_started(
    make_scheduler, make_executor, make_request
):
    scheduler = make_scheduler("sarathi", max_num_seqs=1)
    executor = make_executor(scheduler, {"a": 5, "b": 5, "c": 5, "d": 5})
    executor.add(make_request("a"))
    executor.step()
    executor.add(make_request("b"))
    executor.add(make_request("c", streamed=4))
    scheduler.drain()
    batch = executor.step()
    assert {(i.request_id, i.reason) for i in batch.handed_back} == {
        ("b", HandBackReason.DRAIN),
        ("c", HandBackReason.DRAIN),
    }
    assert scheduler.status(executor.now).draining
    executor.add(make_request("d"))
    executor.drain()
    assert executor.ended == {"a": "finished", "b": "drain", "c": "drain", "d": "drain"}
    scheduler.drain(False)
    assert not scheduler.status(executor.now).draining
