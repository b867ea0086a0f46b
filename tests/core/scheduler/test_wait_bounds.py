"""Prompts and decodes wait no longer than the bound that their batching policy states."""

from math import inf

import pytest

from macroserve.core.batch import BatchKind
from macroserve.core.request import Slo
from macroserve.core.scheduler.config import OVERDUE_TTFTS
from macroserve.core.scheduler.late_requests import MAX_LATE_TTFTS
from macroserve.core.strategies import STRATEGIES


def just_enough(scheduler):
    """Return an SLO whose pace decodes can keep, but that saves too little to pay for any
    prefill."""
    latency = scheduler.latency
    step_s = latency.predict(latency.work((), num_decodes=12, decode_context=12 * 1000))
    return Slo(ttft_s=1.0, tpot_s=1.001 * step_s)


def flood(executor, make_request, slo, until_s):
    """Add more prompts in each iteration than it can prefill."""
    index = 0
    while executor.now < until_s:
        for _ in range(2):
            index += 1
            executor.lengths[f"r{index}"] = 20
            executor.add(make_request(f"r{index}", executor.now, 300, 20, slo))
        executor.step()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_overdue_prompt_without_slack_is_prefilled(
    make_scheduler, make_executor, make_request, strategy
):
    scheduler = make_scheduler(strategy)
    executor = make_executor(scheduler, {"long": 900, "prompt": 2})
    executor.add(make_request("long", 0.0, 50, 900, just_enough(scheduler)))
    for _ in range(20):
        executor.step()
    started_s = executor.now
    executor.add(make_request("prompt", started_s, 300, 10))
    while "prompt" not in executor.first_token_s:
        executor.step()
    waited_s = executor.first_token_s["prompt"] - started_s
    step_s = max(batch.predicted_s for batch in executor.batches)
    assert waited_s <= OVERDUE_TTFTS * scheduler.config.slo.ttft_s + 6 * step_s


def test_overdue_prompts_alternate_with_decode_batches(make_scheduler, make_executor, make_request):
    scheduler = make_scheduler("ecoserve", max_num_seqs=12, num_blocks=2000)
    executor = make_executor(scheduler, {"long": 900})
    executor.add(make_request("long", 0.0, 50, 900, just_enough(scheduler)))
    for _ in range(20):
        executor.step()
    for index in range(10):
        executor.lengths[f"r{index}"] = 900
        executor.add(make_request(f"r{index}", -5.0, 500, 900, just_enough(scheduler)))
    first = len(executor.batches)
    while len(executor.first_token_s) < 11:
        executor.step()
    kinds = [batch.kind for batch in executor.batches[first:]]
    assert kinds == [BatchKind.PREFILL, BatchKind.DECODE] * 9 + [BatchKind.PREFILL]


def test_prefill_phase_ends_after_one_ttft_target(make_scheduler, make_executor, make_request):
    """EcoServe has enough prompts for many phases, and no earlier decode."""
    scheduler = make_scheduler("ecoserve", max_num_seqs=200, max_batch_tokens=512, num_blocks=9000)
    lengths = {f"r{i}": 100 for i in range(150)}
    executor = make_executor(scheduler, lengths)
    for index in range(150):
        executor.add(make_request(f"r{index}", 0.0, 500, 100))
    while executor.step().kind is BatchKind.PREFILL:
        pass
    assert 1.0 <= executor.now < 1.5
    assert executor.batches[-1].kind is BatchKind.DECODE
    assert len(executor.first_token_s) < 150


def test_mixed_batches_of_one_token_for_each_seat_decode_and_prefill_in_every_step(
    make_scheduler, make_executor, make_request
):
    scheduler = make_scheduler("vllm", max_num_seqs=8, max_batch_tokens=8, num_blocks=2000)
    executor = make_executor(scheduler, {f"r{i}": 20 for i in range(40)})
    for index in range(40):
        executor.add(make_request(f"r{index}", 0.0, 30, 20))
    while executor.alive:
        running = scheduler.running
        decodes, prompts = set(running.decoding), next(iter(running.prefilling), None)
        batch = executor.step()
        assert set(batch.decodes) == decodes
        assert prompts is None or batch.prefills[0].request_id == prompts


def test_prefill_first_decodes_once_the_seats_are_taken(
    make_scheduler, make_executor, make_request
):
    scheduler = make_scheduler("prefill-first", max_num_seqs=8, num_blocks=2000)
    executor = make_executor(scheduler, {f"r{i}": 3 for i in range(40)})
    for index in range(40):
        executor.add(make_request(f"r{index}", 0.0, 500, 10))
    in_a_row = longest = 0
    while executor.alive:
        in_a_row = in_a_row + 1 if executor.step().kind is BatchKind.PREFILL else 0
        longest = max(longest, in_a_row)
    assert longest == 8


def test_late_request_under_a_flood_is_served(make_scheduler, make_executor, make_request):
    """Triage defers the big request at once; its share of the prefill serves it all the same."""
    slo = Slo(0.3, 0.1)
    scheduler = make_scheduler("unified", slo=slo, num_blocks=4000, max_num_seqs=256)
    executor = make_executor(scheduler, {"big": 2})
    executor.add(make_request("big", -1.0, 1000, 2, slo))
    flood(executor, make_request, slo, until_s=20.0)
    assert "big" in executor.ended
    before = [
        prefill.num_tokens
        for batch in executor.batches
        for prefill in batch.prefills
        if prefill.request_id != "big"
    ]
    assert sum(before) > 10_000, "the flood kept it busy"
    reasons = {batch.reason for batch in executor.batches}
    assert "prompts have waited too long" not in reasons, "for others were prefilled"


def test_patient_request_under_a_flood_of_urgent_ones_is_served(
    make_scheduler, make_executor, make_request
):
    """A patient prompt gives way until it is overdue, and goes on in pieces beside the others."""
    urgent, patient = Slo(0.3, 0.1), Slo(3.0, 1.0)
    scheduler = make_scheduler("unified", slo=urgent, num_blocks=4000, max_num_seqs=256)
    executor = make_executor(scheduler, {"big": 2, "first": 20})
    executor.add(make_request("first", 0.0, 300, 20, urgent))
    executor.add(make_request("big", 0.0, 1000, 2, patient))
    flood(executor, make_request, urgent, until_s=25.0)
    assert "big" in executor.ended
    assert executor.first_token_s["big"] > patient.ttft_s
    pieces = [p for batch in executor.batches for p in batch.prefills if p.request_id == "big"]
    assert len(pieces) > 3, "two batches have room for it"


def test_long_request_behind_shorter_ones_is_served(make_scheduler, make_executor, make_request):
    """Shorter requests, some of which always wait, pass it until it has waited long enough."""
    slo = Slo(1e6, 1e6)
    scheduler = make_scheduler("unified", slo=slo, num_blocks=4000, max_num_seqs=4)
    executor = make_executor(scheduler, {"big": 2})
    num_short = 0

    def step_with_short_ones_waiting():
        nonlocal num_short
        while len(scheduler.waiting) < 6:
            num_short += 1
            executor.lengths[f"r{num_short}"] = 20
            executor.add(make_request(f"r{num_short}", executor.now, 100, 20, slo))
        executor.step()

    step_with_short_ones_waiting()
    executor.add(make_request("big", executor.now, 900, 200, slo))
    while "big" not in executor.first_token_s and executor.now < 100.0:
        step_with_short_ones_waiting()
    assert "big" in executor.first_token_s
    assert num_short > 50, "many passed it"


def test_requests_under_a_flood_are_served_within_their_bound_or_refused(
    make_scheduler, make_executor, make_request
):
    slo = Slo(0.3, 0.1)
    scheduler = make_scheduler("unified", slo=slo, num_blocks=4000, max_num_seqs=256)
    executor = make_executor(scheduler, {})
    flood(executor, make_request, slo, until_s=20.0)
    waits_s = [
        first_s - executor.requests[name].arrival_s
        for name, first_s in executor.first_token_s.items()
    ]
    assert "drop" in executor.ended.values()
    assert slo.ttft_s < max(waits_s) <= 1.1 * MAX_LATE_TTFTS * slo.ttft_s


def test_late_prompt_that_has_begun_is_served(make_scheduler, make_executor, make_request):
    slo = Slo(0.3, 0.1)
    scheduler = make_scheduler("unified", slo=slo, num_blocks=4000, max_num_seqs=256)
    executor = make_executor(scheduler, {"big": 2})
    executor.add(make_request("big", -1.0, 1500, 2, slo))
    executor.step()
    assert executor.computed["big"] == 512, "nothing else was there"
    flood(executor, make_request, slo, until_s=30.0)
    assert "big" in executor.ended


def test_promised_tokens_grow_only_while_late_requests_exist(
    make_scheduler, make_executor, make_request
):
    """Late requests count begun or not; unclaimed tokens are no credit for requests that are late
    much later."""
    scheduler = make_scheduler("unified", num_blocks=4000)
    executor = make_executor(scheduler, {"late": 2})
    executor.add(make_request("late", -1.0, 2000, 2, Slo(0.3, 0.1)))
    executor.step()
    assert executor.computed["late"] == 512, "nothing else was there"

    def prefill(name):
        executor.lengths[name] = 2
        executor.add(make_request(name, executor.now, 600, 2, Slo(9.0, 0.1)))
        executor.step()
        return scheduler.waiting.promised_tokens

    assert prefill("a") > 0
    executor.finish("late")
    assert prefill("b") == 0


def test_late_request_without_promised_tokens_waits(
    make_scheduler, make_executor, make_request, monkeypatch
):
    """The flood is the same as above, without tokens for late requests, so the test above has a
    cause."""
    monkeypatch.setattr("macroserve.core.scheduler.late_requests.LATE_SHARE", 1e-9)
    slo = Slo(0.3, 0.1)
    scheduler = make_scheduler(
        "unified", slo=slo, num_blocks=4000, max_num_seqs=256, max_late_wait_s=inf
    )
    executor = make_executor(scheduler, {"big": 2})
    executor.add(make_request("big", -1.0, 1000, 2, slo))
    flood(executor, make_request, slo, until_s=20.0)
    assert "big" not in executor.ended


def test_paused_response_continues_when_blocks_are_free(
    make_scheduler, make_executor, make_request
):
    scheduler = make_scheduler("unified", changes={"exact_kv": True}, num_blocks=16)
    for _ in range(9):
        scheduler.lengths.observe(make_request("seen"), 2)
    executor = make_executor(scheduler, {"a": 40, "b": 90, "c": 40})
    for name in "abc":
        executor.add(make_request(name, 0.0, 60, 100))
    paused = 0
    while executor.alive:
        executor.step()
        paused += bool(scheduler.running.paused)
    assert paused
    assert set(executor.ended.values()) == {"finished"}
