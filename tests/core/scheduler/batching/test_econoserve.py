"""EconoServe's batches decide which responses get memory, and which prompts run."""

from dataclasses import replace

import pytest
from support.econoserve_states import (
    ECONOSERVE,
    NO_LENDING,
    PATIENT,
    arrive,
    expect,
    held,
)

from macroserve.core.batch import BatchKind, BatchResult
from macroserve.core.request import Slo
from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.batching.econoserve import econoserve_batch
from macroserve.core.scheduler.blocks import MISS, Hit
from macroserve.core.scheduler.candidates import Candidates
from macroserve.core.strategy import Ordering


def test_econoserve_prompt_gets_its_memory_and_its_response_more(make, make_request):
    scheduler, executor = make()
    arrive(executor, make_request, 100)
    batch = executor.step()
    assert (batch.kind, held(scheduler, "r0")) == (BatchKind.PREFILL, 7)
    assert list(scheduler.running.paused) == ["r0"]
    batch = executor.step()
    assert batch.decodes == ("r0",)
    # 101 tokens are there, and 1.15 times the 39 that are expected to come.
    assert held(scheduler, "r0") == 10
    blocks = held(scheduler, "r0")
    executor.drain()
    assert scheduler.running.blocks.free == scheduler.config.num_blocks >= blocks


def test_econoserve_response_gets_no_memory_beyond_its_limit(make, make_request):
    """The response has 39 tokens to come; 1.15 times as many would take a tenth block."""
    scheduler, executor = make()
    arrive(executor, make_request, 100, new=40)
    while not executor.step().decodes:
        pass
    assert held(scheduler, "r0") == 9


def test_econoserve_prompts_fill_the_rest_of_the_forward_size(make, make_request):
    _, executor = make(chunk_tokens=128)
    arrive(executor, make_request, 100, 100)
    executor.step()
    arrive(executor, make_request, 300)
    batch = executor.step()
    # One response, the rest of the second prompt, and as much of the third as is left.
    assert batch.kind is BatchKind.MIXED and batch.num_tokens == 128


def test_econoserve_responses_come_first_and_leave_a_reserve(make, make_request):
    """The pool has 50 blocks: two prompts of 18 leave 14, of which one response gets its 10, and 1
    is kept."""
    scheduler, executor = make(expected=130, num_blocks=50, strategy=NO_LENDING)
    arrive(executor, make_request, 288, 288)
    while len(scheduler.running.paused) < 2:
        batch = executor.step()
        if batch.decodes:
            break
    arrive(executor, make_request, 60)
    for _ in range(5):
        batch = executor.step()
        assert "r2" not in [prefill.request_id for prefill in batch.prefills]
    assert sum(scheduler.running.decoding.get(f"r{i}") is not None for i in range(2)) == 1


def test_econoserve_response_that_outruns_its_memory_waits_for_more(make, make_request):
    """The two responses are expected to take four tokens and take 60, so that the pool of 21 fills
    up."""
    scheduler, executor = make(
        expected=4, lengths={"r0": 60, "r1": 60}, num_blocks=21, strategy=NO_LENDING
    )
    arrive(executor, make_request, 144, 144, new=100)
    paused = set()
    while len(executor.ended) < 2:
        executor.step()
        paused |= {i for i, seq in scheduler.running.paused.items() if seq.num_emitted > 1}
    assert paused
    assert executor.ended == {"r0": "finished", "r1": "finished"}


@pytest.mark.parametrize(
    ("urgent", "expected"),
    [
        (Slo(60.0, 30.0), ["r2", "r0", "r1"]),  # the one with the most memory
        (Slo(0.01, 0.001), ["r1", "r2", "r0"]),
    ],
)
def test_econoserve_orders_by_urgency_then_memory(make, make_request, urgent, expected):
    """The number of remaining tokens does not matter: the one with the least memory has the
    most."""
    scheduler, executor = make(num_blocks=256)
    for prompt, slo in ((140, PATIENT), (32, urgent), (300, PATIENT)):
        arrive(executor, make_request, prompt, slo=slo)
    batch = scheduler.schedule(executor.now)
    prefilled = {prefill.request_id: prefill.num_tokens for prefill in batch.prefills}
    executor.now += 0.1
    result = BatchResult(0.1, prefilled, dict.fromkeys(prefilled, 1))
    scheduler.update(batch, result, executor.now)
    expect(scheduler, "r1", 120)
    assert list(scheduler.schedule(executor.now).decodes) == expected


@pytest.mark.parametrize(
    ("ordering", "group_by_length", "expected"),
    [
        (Ordering.EDF, True, ["r1", "r3", "r0", "r2"]),
        (Ordering.EDF, False, ["r1", "r0", "r2", "r3"]),
        (Ordering.FCFS, True, ["r0", "r2", "r1", "r3"]),
        (Ordering.FCFS, False, ["r0", "r1", "r2", "r3"]),
    ],
)
def test_econoserve_with_group_by_length_groups_equal_ends(
    make, make_request, ordering, group_by_length, expected
):
    strategy = replace(ECONOSERVE, ordering=ordering, group_by_length=group_by_length)
    scheduler, executor = make(num_blocks=256, strategy=strategy)
    arrive(executor, make_request, 80, 200, 64, 48)
    batch = scheduler.schedule(0.0)
    prefilled = {prefill.request_id: prefill.num_tokens for prefill in batch.prefills}
    scheduler.update(batch, BatchResult(0.1, prefilled, dict.fromkeys(prefilled, 1)), 0.1)
    for index, num_tokens in enumerate((100, 20, 100, 20)):
        expect(scheduler, f"r{index}", num_tokens)
    assert list(scheduler.schedule(0.1).decodes) == expected


def test_econoserve_responses_leave_memory_to_prompts(make, make_request):
    """Responses leave 3 of 100 blocks: the second, which would take the last 44, waits."""
    scheduler, executor = make(expected=600, strategy=NO_LENDING, num_blocks=100)
    arrive(executor, make_request, 16, 16, new=850)
    executor.step()
    expect(scheduler, "r0", 750)
    executor.step()
    assert held(scheduler, "r0") == 55
    assert "r1" in scheduler.running.paused


@pytest.mark.parametrize(
    ("ordering", "expected"),
    [(Ordering.EDF, ["r2", "r1", "r0"]), (Ordering.FCFS, ["r0", "r1", "r2"])],
)
def test_econoserve_prompts_are_ordered_by_urgency_then_length(
    make, make_request, ordering, expected
):
    _, executor = make(strategy=replace(ECONOSERVE, ordering=ordering))
    arrive(executor, make_request, 40, 90)
    arrive(executor, make_request, 20, slo=Slo(0.3, 0.001))
    order = [prefill.request_id for prefill in executor.step().prefills]
    assert order == expected


def test_econoserve_prompt_that_was_just_preempted_waits_for_an_iteration(make_step) -> None:
    step = make_step("econoserve", waiting=(50, 50))
    first, second = step.inputs.waiting
    step.inputs = replace(step.inputs, preempted=(first,))
    step.admission = type(step.admission)(step.inputs, step.candidates)
    assert [pick.seq for pick in step.plan().picks] == [second]


def queued(make, make_request, *expected):
    """Return a scheduler whose responses of ``expected`` tokens wait for memory: 64 of its 160
    blocks, less those of the prompts and a reserve of 4."""
    scheduler, executor = make(strategy=NO_LENDING, num_blocks=160)
    scheduler.running.blocks.grant("held", 96)
    arrive(executor, make_request, *[16] * len(expected), new=2000)
    batch = scheduler.schedule(executor.now)
    prefilled = {prefill.request_id: prefill.num_tokens for prefill in batch.prefills}
    scheduler.update(batch, BatchResult(0.1, prefilled, dict.fromkeys(prefilled, 1)), 0.1)
    for index, num_tokens in enumerate(expected):
        expect(scheduler, f"r{index}", num_tokens)
    return scheduler


def test_econoserve_longest_response_that_fits_goes_beside_one_that_does_not(make, make_request):
    """The free blocks are 55; 1000 tokens need 72, 500 need 36, 400 need 29, 200 need 15, 100 8."""
    scheduler = queued(make, make_request, 1000, 200, 100, 400, 500)
    assert scheduler.schedule(0.1).decodes == ("r4", "r1")


def test_econoserve_prompts_get_what_queued_responses_leave_of_the_reserve(make, make_request):
    """The reserve is 4 blocks, of which the response that waits holds 1."""
    scheduler = queued(make, make_request, 2000, 100)
    for index in range(5):
        scheduler.add_request(make_request(f"p{index}", 0.1, 16, 200, PATIENT), 0.1)
    batch = scheduler.schedule(0.1)
    assert batch.decodes == ("r1",) and list(scheduler.running.paused) == ["r0"]
    assert len(batch.prefills) == 3


@pytest.mark.parametrize(("after_s", "begun"), [(-1, "r1"), (1, "r0")])
def test_econoserve_no_response_passes_an_overdue_one(make, make_request, after_s, begun):
    """The overdue one has not all the memory it needs, but nothing else has any."""
    scheduler = queued(make, make_request, 1000, 200)
    scheduler.sequences["r1"].arrival_s = overdue_s = 2 * (PATIENT.ttft_s + 1000 * PATIENT.tpot_s)
    assert scheduler.schedule(overdue_s + after_s).decodes == (begun,)


def test_econoserve_group_that_does_not_fit_is_split(make, make_request):
    """The four responses need 18 blocks each, of 56."""
    scheduler = queued(make, make_request, 240, 240, 240, 240)
    assert scheduler.schedule(0.1).decodes == ("r0", "r1", "r2")
    assert list(scheduler.running.paused) == ["r3"]


def test_econoserve_longest_whole_prompts_go_before_the_one_that_is_cut(make, make_request):
    """The longest prompt takes 100 of 128 tokens, and the next one has 28 left; 25 fit whole."""
    _, executor = make(chunk_tokens=128)
    arrive(executor, make_request, 20, 100, 60, 25)
    batch = executor.step()
    assert [(p.request_id, p.num_tokens) for p in batch.prefills] == [
        ("r1", 100),
        ("r3", 25),
        ("r2", 3),
    ]


def test_econoserve_first_prompt_is_cut_rather_than_passed(make, make_request):
    _, executor = make(chunk_tokens=128)
    arrive(executor, make_request, 20, 300, 60)
    batch = executor.step()
    assert [(p.request_id, p.num_tokens) for p in batch.prefills] == [("r1", 128)]


@pytest.mark.parametrize(("late", "begun"), [(False, ["r1", "r2"]), (True, [])])
def test_econoserve_prompts_pass_one_without_memory_until_it_is_overdue(
    make, make_request, late, begun
):
    """A prompt of 400 tokens finds no 25 blocks among 24."""
    scheduler, executor = make(num_blocks=40)
    scheduler.running.blocks.grant("held", 16)
    arrive(executor, make_request, 400, 90, 40)
    now = 2 * (PATIENT.ttft_s + 40 * PATIENT.tpot_s) + (1 if late else -1)
    batch = scheduler.schedule(now)
    assert [prefill.request_id for prefill in batch.prefills] == begun


def test_econoserve_response_that_becomes_overdue_is_not_kept_out_by_a_repeated_plan(
    make, make_request
):
    """``r0``, overdue, has no memory, and ``r1`` holds more once it is overdue itself."""
    scheduler = queued(make, make_request, 1000, 1000, 20)
    batch = scheduler.schedule(0.1)
    assert batch.decodes == ("r2",)
    scheduler.update(batch, BatchResult(0.1, decoded=1), 0.2)
    expect(scheduler, "r1", 200)
    scheduler.running.blocks.grant("r1", 9)
    first_s = 2 * (PATIENT.ttft_s + 1000 * PATIENT.tpot_s)
    scheduler.sequences["r1"].arrival_s = first_s
    after_s = first_s + 2 * (PATIENT.ttft_s + 200 * PATIENT.tpot_s)
    for now, decodes in ((first_s + 1, ("r2",)), (after_s + 1, ("r2", "r1"))):
        batch = scheduler.schedule(now)
        assert batch.decodes == decodes
        scheduler.update(batch, BatchResult(0.1, decoded=1), now)


class Cache:
    """The engine's cache has the same of every prompt."""

    def __init__(self, hit: Hit) -> None:
        self._hit = hit

    def find(self, request_id: str) -> Hit:
        return self._hit


def plan_beside_a_decode(make_step, cache):
    """Return the plan for a prompt of 400 tokens, which takes 25 blocks of which 18 are free."""
    step = make_step("econoserve", decoding=(1.0,), waiting=(400,), num_blocks=20)
    step.inputs = replace(step.inputs, cache=cache)
    return econoserve_batch(step.inputs, Admission(step.inputs, Candidates(step.inputs)))


@pytest.mark.parametrize(("cache", "repeatable"), [(None, True), (Cache(MISS), False)])
def test_econoserve_plan_is_repeatable_beside_a_prompt_that_no_cache_may_have(
    make_step, cache, repeatable
):
    plan = plan_beside_a_decode(make_step, cache)
    assert (plan.picks, plan.repeatable) == ([], repeatable)


def test_econoserve_prompt_begins_in_the_memory_for_blocks_that_nobody_holds(make_step):
    (pick,) = plan_beside_a_decode(make_step, Cache(Hit(160, num_held_blocks=10))).picks
    assert (pick.num_before, pick.num_blocks, pick.num_shared) == (160, 25, 10)
