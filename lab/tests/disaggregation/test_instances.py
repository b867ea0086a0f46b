"""The scheduler of an instance holds requests whose KV caches move."""

from dataclasses import replace

import pytest

from macroserve.core.batch import BatchKind, BatchResult
from macroserve.core.request import Request, Slo
from macroserve.core.scheduler.sequence import State
from macroserve_lab.disaggregation.instances import DecodeScheduler, PrefillScheduler

SMALL = {"num_blocks": 256, "block_size": 16, "max_num_seqs": 16, "max_model_len": 4096}


@pytest.fixture
def sender(config, latency):
    return PrefillScheduler(replace(config, **SMALL), latency)


@pytest.fixture
def receiver(config, latency):
    return DecodeScheduler(replace(config, **SMALL), latency)


def request(name, arrival_s=0.0, prompt=100, new=50, streamed=0):
    return Request(name, arrival_s, prompt, new, Slo(1.0, 0.1), streamed)


def test_sent_request_keeps_its_blocks_until_it_is_transferred(sender):
    total = sender.status(0.0).free_blocks
    sender.add_request(request("r", prompt=100), 0.0)
    batch = sender.schedule(0.0)
    sender.update(batch, BatchResult(0.1, {"r": 100}, {"r": 1}), 0.1)
    assert sender.schedule(0.2).kind is BatchKind.IDLE, "it is not decoded here"
    status = sender.status(0.2)
    assert (status.num_running, status.num_decoding) == (1, 0)
    assert status.free_blocks < total
    sender.finish("r")
    assert sender.status(0.3).free_blocks == total


def test_request_that_ends_with_its_first_token_is_not_sent(sender):
    sender.add_request(request("r", prompt=100), 0.0)
    batch = sender.schedule(0.0)
    sender.update(batch, BatchResult(0.1, {"r": 100}, {"r": 1}, ("r",)), 0.1)
    status = sender.status(0.1)
    assert (status.num_running, status.finished, status.attained) == (0, 1, 1)


def test_expected_request_decodes_once_it_is_received(receiver):
    assert receiver.expect(request("r", prompt=101, new=3, streamed=1), 0.0)
    assert receiver.status(0.0).admitted == ("r",)
    assert receiver.schedule(0.0).kind is BatchKind.IDLE
    receiver.receive("r")
    for step in range(3):
        batch = receiver.schedule(step)
        assert (batch.kind, batch.decodes) == (BatchKind.DECODE, ("r",))
        finished = ("r",) if step == 2 else ()
        receiver.update(batch, BatchResult(0.1, finished=finished, decoded=1), step + 0.1)
    assert receiver.status(9.0).finished == 1
    assert receiver.status(9.0).free_blocks == receiver.config.num_blocks


def test_expected_request_beyond_memory_or_seats_is_refused(receiver):
    assert not receiver.expect(request("long", prompt=16 * 256, new=3, streamed=1), 0.0)
    for index in range(receiver.config.max_num_seqs):
        assert receiver.expect(request(str(index), prompt=20, new=3, streamed=1), 0.0)
    assert not receiver.expect(request("one too many", prompt=20, new=3, streamed=1), 0.0)
    assert "long" not in receiver.status(0.0).admitted


def test_request_in_transfer_is_not_preempted(receiver):
    """The sequence that decodes fills the memory, and came first."""
    total = receiver.config.num_blocks
    assert receiver.expect(request("a", prompt=16 * (total - 2), new=32, streamed=1), 0.0)
    receiver.receive("a")
    assert receiver.expect(request("b", arrival_s=1.0, prompt=8, new=3, streamed=1), 0.0)
    preempted = []
    for step in range(40):
        batch = receiver.schedule(step)
        preempted += batch.preempted
        assert receiver.sequences["b"].state is State.LOADING
        prefilled = {prefill.request_id: prefill.num_tokens for prefill in batch.prefills}
        receiver.update(batch, BatchResult(0.1, prefilled, decoded=1), step + 0.1)
    assert preempted == ["a"]
