"""EconoServe's batches decide which responses get or borrow memory, and which prompts run."""

from dataclasses import replace

import pytest

from macroserve.core.batch import BatchKind, BatchResult
from macroserve.core.request import Slo
from macroserve.core.scheduler.engine_cache import MISS, Hit
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.core.scheduler.sequence import State
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import Ordering

PATIENT = Slo(ttft_s=60.0, tpot_s=30.0)
ECONOSERVE = STRATEGIES["econoserve"]


@pytest.fixture
def make(make_scheduler, make_executor):
    """Return a scheduler that has seen responses of ``expected`` tokens, and an executor.

    The executor ends responses at their ``lengths``, by default 40 tokens. Blocks have 16 tokens.
    """

    def build(expected=40, lengths=None, strategy=ECONOSERVE, **fields):
        scheduler = make_scheduler(strategy, **fields)
        executor = make_executor(scheduler, {f"r{i}": 40 for i in range(100)} | (lengths or {}))
        for _ in range(9):
            scheduler.lengths.observe(EXAMPLE, expected)
        return scheduler, executor

    return build


@pytest.fixture(autouse=True)
def _example(make_request):
    global EXAMPLE
    EXAMPLE = make_request("example", prompt=10, new=50)


def arrive(executor, make_request, *prompts, slo=PATIENT, new=200):
    for prompt in prompts:
        name = f"r{len(executor.requests)}"
        assert executor.add(make_request(name, executor.now, prompt, new, slo)) is None


def held(scheduler, name):
    return scheduler.running.blocks.held_by(name)


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


NO_LENDING = replace(ECONOSERVE, kv_lending=False)


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


def expect(scheduler, name, num_tokens):
    """Set the expected length of a response."""
    seq = scheduler.sequences[name]
    assert seq.state is State.PAUSED
    seq.predicted_tokens = num_tokens


def wait_for_memory(scheduler, executor, name, num_tokens):
    """Run until a response waits for memory, and set its expected length."""
    while name not in scheduler.running.paused:
        executor.step()
    expect(scheduler, name, num_tokens)


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


def test_econoserve_prompt_that_was_just_preempted_waits_for_an_iteration(make_step) -> None:
    step = make_step("econoserve", waiting=(50, 50))
    first, second = step.inputs.waiting
    step.inputs = replace(step.inputs, preempted=(first,))
    step.admission = type(step.admission)(step.inputs, step.candidates)
    assert [pick.seq for pick in step.plan().picks] == [second]


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
    """Of 55 blocks, 1000 tokens need 72, 500 need 36, 400 need 29, 200 need 15, and 100 need 8."""
    scheduler = queued(make, make_request, 1000, 200, 100, 400, 500)
    assert scheduler.schedule(0.1).decodes == ("r4", "r1")


@pytest.mark.parametrize(("after_s", "begun"), [(-1, "r1"), (1, "r0")])
def test_econoserve_no_response_passes_an_overdue_one(make, make_request, after_s, begun):
    """The overdue one has not all the memory it needs, but nothing else has any."""
    scheduler = queued(make, make_request, 1000, 200)
    scheduler.sequences["r1"].arrival_s = overdue_s = 2 * (PATIENT.ttft_s + 1000 * PATIENT.tpot_s)
    assert scheduler.schedule(overdue_s + after_s).decodes == (begun,)


def test_econoserve_group_that_does_not_fit_is_split(make, make_request):
    """Each of the four needs 18 of 56 blocks."""
    scheduler = queued(make, make_request, 240, 240, 240, 240)
    assert scheduler.schedule(0.1).decodes == ("r0", "r1", "r2")
    assert list(scheduler.running.paused) == ["r3"]


def test_econoserve_longest_whole_prompts_go_before_the_one_that_is_cut(make, make_request):
    """Of 128 tokens the longest prompt takes 100, and the next one has 28 left; 25 fit whole."""
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


def test_econoserve_response_that_becomes_overdue_is_not_kept_out_by_a_standing_plan(
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
    """It is preempted as without host memory, and computes the rest alone when it begins again."""
    memory = HostMemory(20)
    config = make_config(ECONOSERVE, num_blocks=20)
    scheduler = InstanceScheduler(config, make_latency(), memory)
    for _ in range(9):
        scheduler.lengths.observe(EXAMPLE, 120)
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
