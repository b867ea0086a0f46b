"""EconoServe's responses lend the memory that they do not use yet."""

from dataclasses import replace

import pytest
from support.econoserve_states import (
    ECONOSERVE,
    arrive,
    expect,
    held,
    wait_for_memory,
)

from macroserve.core.scheduler.blocks import MISS, Hit
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.core.scheduler.sequence import State


def starved(make, make_request, num_blocks=20, **fields):
    """Return a state in which a long response holds all memory and a short one, with 18 tokens to
    come, waits."""
    scheduler, executor = make(
        expected=120, lengths={"r0": 120, "r1": 18}, num_blocks=num_blocks, **fields
    )
    arrive(executor, make_request, 160, new=140)
    for _ in range(3):
        executor.step()
    assert held(scheduler, "r0") == 19
    arrive(executor, make_request, 14)
    return scheduler, executor


@pytest.mark.parametrize("kv_lending", [True, False])
def test_econoserve_with_kv_lending_lends_unused_memory(make, make_request, kv_lending):
    scheduler, executor = starved(
        make, make_request, strategy=replace(ECONOSERVE, kv_lending=kv_lending)
    )
    wait_for_memory(scheduler, executor, "r1", 18)
    executor.step()
    assert (scheduler.running.decoding.get("r1") is not None) == kv_lending
    if kv_lending:
        borrower, lender = scheduler.sequences["r1"], scheduler.sequences["r0"]
        assert borrower.lender is lender and lender.borrowers == [borrower]
        assert held(scheduler, "r0") + held(scheduler, "r1") == 20
        assert lender.num_slots == 16 * held(scheduler, "r0")
        while "r1" not in executor.ended:
            executor.step()
        assert held(scheduler, "r0") == 19, "it got back what it had lent"
        assert lender.borrowers == []
    executor.drain()
    assert not any(batch.preempted for batch in executor.batches)


def test_econoserve_borrowed_blocks_take_none_from_prompts(make, make_request):
    scheduler, executor = starved(make, make_request, num_blocks=21)
    wait_for_memory(scheduler, executor, "r1", 18)
    arrive(executor, make_request, 14)
    batch = executor.step()
    assert scheduler.sequences["r1"].num_borrowed == 2 > scheduler.running.blocks.free == 0
    assert [prefill.request_id for prefill in batch.prefills] == ["r2"]


@pytest.mark.parametrize(
    ("num_tokens", "later", "fits"),
    [
        (52, 0, True),
        (62, 0, False),
        (57, 0, True),
        (57, 8, False),  # it would just have ended, with no step to spare
    ],
)
def test_econoserve_borrower_must_end_before_its_lender_needs_memory(
    make, make_request, num_tokens, later, fits
):
    """The lender has 142 slots left, ``later`` steps after that fewer, and lends less than half."""
    scheduler, executor = starved(make, make_request)
    wait_for_memory(scheduler, executor, "r1", 190)
    for _ in range(later):
        executor.step()
    expect(scheduler, "r1", num_tokens)
    executor.step()
    assert (scheduler.running.decoding.get("r1") is not None) == fits


def test_econoserve_borrower_that_is_late_is_preempted(make, make_request):
    scheduler, executor = starved(make, make_request)
    executor.lengths["r1"] = 190
    wait_for_memory(scheduler, executor, "r1", 18)
    executor.step()
    assert scheduler.sequences["r1"].lender is not None
    while "r0" not in executor.ended:
        executor.step()
        assert "r0" not in scheduler.running.paused, "the lender waits for its borrower"
    assert [i for batch in executor.batches for i in batch.preempted] == ["r1"]
    executor.drain()
    assert executor.ended == {"r0": "finished", "r1": "finished"}


def test_econoserve_borrower_stays_if_its_lender_ends_first(make, make_request):
    scheduler, executor = starved(make, make_request)
    executor.lengths["r0"] = 12
    wait_for_memory(scheduler, executor, "r1", 18)
    while "r0" not in executor.ended:
        executor.step()
    borrower = scheduler.sequences["r1"]
    assert borrower.lender is None and borrower.state is State.DECODING
    executor.drain()
    assert not any(batch.preempted for batch in executor.batches)


def test_econoserve_lends_each_block_once(make, make_request):
    scheduler, executor = make(expected=120, lengths={"r0": 120}, num_blocks=21, max_num_seqs=3)
    arrive(executor, make_request, 160, new=140)
    for _ in range(3):
        executor.step()
    arrive(executor, make_request, 14, 14)
    for _ in range(9):
        executor.step()
        for name in tuple(scheduler.running.paused):
            expect(scheduler, name, 190)  # too long to be lent anything
    assert len(scheduler.running.paused) == 2
    for name in ("r1", "r2"):
        expect(scheduler, name, 50)
    executor.step()
    assert [scheduler.sequences[name].lender is None for name in ("r1", "r2")] == [False, True]


def test_econoserve_lender_lends_to_several_what_it_needs_last(make, make_request):
    """The two borrow 48 slots each for at most 52 steps; the lender needs its own slots later."""
    scheduler, executor = make(expected=170, lengths={"r0": 170}, num_blocks=25, max_num_seqs=3)
    arrive(executor, make_request, 160, new=200)
    for _ in range(3):
        executor.step()
    arrive(executor, make_request, 14, 14)
    for _ in range(20):
        executor.step()
        for name in tuple(scheduler.running.paused):
            expect(scheduler, name, 190)  # too long to be lent anything
    lender = scheduler.running.decoding["r0"]
    assert 48 + 100 <= lender.num_slots - lender.num_tokens < 2 * 100
    for name in ("r1", "r2"):
        expect(scheduler, name, 40)
    executor.step()
    assert [scheduler.sequences[name].lender for name in ("r1", "r2")] == [lender, lender]


def test_econoserve_borrower_that_outruns_its_loan_borrows_no_more(make, make_request):
    """A borrower with two lenders would have blocks of which the owner is unknown."""
    scheduler, executor = starved(make, make_request)
    executor.lengths["r1"] = 190
    wait_for_memory(scheduler, executor, "r1", 18)
    executor.step()
    borrower, lender = scheduler.sequences["r1"], scheduler.sequences["r0"]
    wait_for_memory(scheduler, executor, "r1", borrower.num_emitted + 4)
    borrowed = borrower.num_borrowed
    executor.step()
    assert borrower.state is State.PAUSED
    assert (borrower.lender, borrower.num_borrowed, lender.borrowers) == (
        lender,
        borrowed,
        [borrower],
    )


def test_econoserve_borrower_lends_in_turn(make, make_request):
    """The responses nest "akin to Russian nesting dolls" (section 3.2): one with 140 slots left
    lends 4 blocks, of which the borrower, with 64 slots left, lends one."""
    scheduler, executor = starved(make, make_request, num_blocks=21)
    executor.lengths["r1"], executor.lengths["r2"] = 42, 12
    wait_for_memory(scheduler, executor, "r1", 50)
    executor.step()
    arrive(executor, make_request, 14)
    wait_for_memory(scheduler, executor, "r2", 8)
    executor.step()
    outer, middle, inner = (scheduler.sequences[f"r{index}"] for index in range(3))
    assert (middle.lender, inner.lender) == (outer, middle)
    executor.drain()
    assert not any(batch.preempted for batch in executor.batches)


def test_econoserve_late_borrower_is_preempted_though_others_came_later(make, make_request):
    """The borrower holds the memory that its lender needs; the latest arrival does not."""
    scheduler, executor = starved(make, make_request, num_blocks=21)
    executor.lengths["r1"] = 190
    wait_for_memory(scheduler, executor, "r1", 18)
    executor.step()
    assert scheduler.sequences["r1"].lender is not None
    arrive(executor, make_request, 14)
    wait_for_memory(scheduler, executor, "r2", 190)
    preempted = [executor.step().preempted for _ in range(140)]
    assert next(filter(None, preempted)) == ("r1",)
    executor.drain()


class HostMemory:
    """The record of an engine that has 16 tokens of each preempted request in the host's memory."""

    def __init__(self, num_blocks):
        self.free, self.allocated, self.preempted = num_blocks, 0, set()

    def keeps_to(self, request_id, num_blocks):
        return True

    def shared_by(self, request_id):
        return 0

    def num_cached(self, request_id, last_found):
        return self.find(request_id).num_tokens

    def find(self, request_id):
        return Hit(16, 0, load_s=0.01) if request_id in self.preempted else MISS


def test_econoserve_late_borrower_comes_back_by_loading_what_the_host_has(
    make_config, make_latency, make_executor, make_request
):
    """The borrower is preempted as without host memory, and later computes the rest alone."""
    memory = HostMemory(20)
    config = make_config(ECONOSERVE, num_blocks=20)
    scheduler = InstanceScheduler(config, make_latency(), memory)
    for _ in range(9):
        scheduler.lengths.observe(make_request("example", prompt=10, new=50), 120)
    executor = make_executor(scheduler, {"r0": 120, "r1": 190})
    arrive(executor, make_request, 160, new=140)
    for _ in range(3):
        executor.step()
    arrive(executor, make_request, 14)
    wait_for_memory(scheduler, executor, "r1", 18)
    while not executor.batches[-1].preempted:
        executor.step()
    assert executor.batches[-1].preempted == ("r1",)
    memory.preempted.add("r1")
    while not executor.batches[-1].prefills:
        executor.step()
    (prefill,) = executor.batches[-1].prefills
    known = executor.requests["r1"].num_prompt_tokens + executor.emitted["r1"]
    assert (prefill.request_id, prefill.num_tokens) == ("r1", known - 16)
