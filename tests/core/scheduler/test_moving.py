"""The KV cache of a request comes from another instance, or goes to one."""

import pytest

from macroserve.core.batch import BatchKind, BatchResult
from macroserve.core.scheduler.sequence import State
from macroserve.core.status import Pool
from macroserve.core.strategies import DISAGGREGATED


@pytest.fixture
def sender(make_scheduler):
    return make_scheduler(DISAGGREGATED["mooncake"], pool=Pool.HP)


@pytest.fixture
def receiver(make_scheduler):
    return make_scheduler(DISAGGREGATED["mooncake"], pool=Pool.LP)


def test_sent_request_keeps_its_blocks_until_it_is_transferred(sender, make_request):
    total = sender.status(0.0).free_blocks
    sender.add_request(make_request("r", prompt=100), 0.0)
    batch = sender.schedule(0.0)
    sender.update(batch, BatchResult(0.1, {"r": 100}, {"r": 1}), 0.1)
    assert sender.schedule(0.2).kind is BatchKind.IDLE, "it is not decoded here"
    status = sender.status(0.2)
    assert (status.num_running, status.num_decoding) == (1, 0)
    assert status.free_blocks < total
    sender.finish("r")
    assert sender.status(0.3).free_blocks == total


def test_request_that_ends_with_its_first_token_is_not_sent(sender, make_request):
    sender.add_request(make_request("r", prompt=100), 0.0)
    batch = sender.schedule(0.0)
    sender.update(batch, BatchResult(0.1, {"r": 100}, {"r": 1}, ("r",)), 0.1)
    status = sender.status(0.1)
    assert (status.num_running, status.finished, status.attained) == (0, 1, 1)


def test_expected_request_decodes_once_it_is_received(receiver, make_request):
    request = make_request("r", prompt=101, new=3, streamed=1)
    assert receiver.expect(request)
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


def test_expected_request_beyond_memory_or_seats_is_refused(receiver, make_request):
    assert not receiver.expect(make_request("long", prompt=16 * 256, new=3, streamed=1))
    for index in range(receiver.config.max_num_seqs):
        assert receiver.expect(make_request(str(index), prompt=20, new=3, streamed=1))
    assert not receiver.expect(make_request("one too many", prompt=20, new=3, streamed=1))
    assert "long" not in receiver.status(0.0).admitted


def test_request_in_transfer_is_not_preempted(receiver, make_request):
    """The sequence that decodes fills the memory, and came first."""
    total = receiver.config.num_blocks
    assert receiver.expect(make_request("a", prompt=16 * (total - 2), new=100, streamed=1))
    receiver.receive("a")
    assert receiver.expect(make_request("b", arrival_s=1.0, prompt=8, new=3, streamed=1))
    preempted = []
    for step in range(40):
        batch = receiver.schedule(step)
        preempted += batch.preempted
        assert receiver.sequences["b"].state is State.MOVING
        prefilled = {prefill.request_id: prefill.num_tokens for prefill in batch.prefills}
        receiver.update(batch, BatchResult(0.1, prefilled, decoded=1), step + 0.1)
    assert preempted == ["a"]
