"""The macro strategy runs the papers' mechanisms together, each by its paper's rules."""

from dataclasses import replace

import pytest
from support.econoserve_states import PATIENT, arrive, expect, held, wait_for_memory

from macroserve.core.batch import BatchKind
from macroserve.core.request import Slo
from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.sequence import State
from macroserve.core.status import Phase, Pool
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import HybridCache

MACRO = STRATEGIES["macro"]
HYBRID = {"hidden_states_per_block": 32}
"""Blocks of 16 tokens hold twice as many hidden states."""


@pytest.mark.parametrize(
    ("saved_s", "fields", "kind"),
    [
        ([9.0, 9.0], {}, BatchKind.PREFILL),
        # The mean counts, as in EcoServe.
        ([9.0, -1.0], {}, BatchKind.PREFILL),
        ([0.0, 0.0], {}, BatchKind.DECODE),
        ([0.0, 0.0], {"waited_s": 60.0}, BatchKind.PREFILL),
        ([9.0, 9.0], {"phase": Phase.PREFILL, "phase_s": 60.0}, BatchKind.DECODE),
    ],
    ids=["paid", "by the mean", "unpaid", "overdue", "spent"],
)
def test_macro_on_an_lp_instance_alternates_phases(compose, saved_s, fields, kind):
    found, picks, decodes, _ = compose("macro", saved_s, [100], pool=Pool.LP, **fields)
    assert found is kind
    assert bool(picks) != bool(decodes)


def test_macro_on_an_hp_instance_prefills_first_and_decodes_beside(compose):
    kind, picks, decodes, _ = compose("macro", [-1.0], [100], pool=Pool.HP)
    assert (kind, picks, decodes) == (BatchKind.MIXED, [("w0", 100)], ["d0"])


def test_macro_decode_phase_runs_the_responses_that_get_memory(make, make_request):
    scheduler, executor = make(strategy="macro", pool=Pool.LP, num_blocks=200)
    arrive(executor, make_request, 100)
    assert executor.step().kind is BatchKind.PREFILL
    assert list(scheduler.running.paused) == ["r0"]
    executor.now = switched_s = 10.0
    batch = executor.step()
    assert (batch.kind, batch.decodes) == (BatchKind.DECODE, ("r0",))
    # A hundred tokens and one, and 1.15 times the 39 to come.
    assert held(scheduler, "r0") == 10
    # The clock of TPOT starts with the switch, as for any other decode.
    assert scheduler.sequences["r0"].tpot_budget_until_s == switched_s + PATIENT.tpot_s


@pytest.mark.parametrize("ttft_s", [1.0, 20.0])
def test_macro_prefill_phase_ends_for_responses_that_wait_alone(make, make_request, ttft_s):
    """The phase lasts for a TTFT target of the first response, whatever that of the others."""
    _, executor = make(strategy="macro", pool=Pool.LP, num_blocks=200, slo=Slo(9.0, 30.0))
    for index, target_s in enumerate((ttft_s, 30.0)):
        executor.add(make_request(f"r{index}", executor.now, 100, 100, Slo(target_s, 30.0)))
        assert executor.step().kind is BatchKind.PREFILL
        executor.now += 0.55 * ttft_s
    arrive(executor, make_request, 100)
    assert executor.step().decodes == ("r0", "r1")


def test_macro_on_an_hp_instance_resumes_responses_beside_prefills(make, make_request):
    _, executor = make(strategy="macro", pool=Pool.HP, num_blocks=200)
    arrive(executor, make_request, 100)
    executor.step()
    arrive(executor, make_request, 100)
    batch = executor.step()
    assert ([each.request_id for each in batch.prefills], batch.decodes) == (["r1"], ("r0",))


@pytest.mark.parametrize("pool", Pool)
def test_macro_prompts_leave_the_memory_of_responses_that_wait(make, make_request, pool):
    """The first response takes 22 of 40 blocks, the other waits with ten; a prompt needs four."""
    alone = replace(MACRO, kv_lending=False)
    scheduler, executor = make(strategy=alone, expected=170, pool=pool, num_blocks=40)
    arrive(executor, make_request, 160, 160)
    while not (scheduler.running.decoding and scheduler.running.paused):
        executor.step()
    (first,) = scheduler.running.decoding
    arrive(executor, make_request, 60)
    while first in scheduler.running.decoding:
        assert scheduler.sequences["r2"].state is State.WAITING
        executor.step()
    executor.drain()
    assert executor.ended.keys() == {"r0", "r1", "r2"}


def test_macro_chooses_prompts_for_the_memory_beside_responses(make, make_request):
    """A response takes 12 of 20 free blocks: the prompt that has waited longest needs ten."""
    scheduler, executor = make(strategy="macro", pool=Pool.LP, slo=PATIENT, num_blocks=30)
    arrive(executor, make_request, 160)
    executor.step()
    expect(scheduler, "r0", 167)
    executor.now = 20.0
    for name, arrival_s, prompt in (("r1", 10.0, 150), ("r2", 19.0, 60)):
        executor.add(make_request(name, arrival_s, prompt, 100, PATIENT))
    assert [each.request_id for each in executor.step().prefills] == ["r2"]


def test_macro_lends_memory_that_a_response_does_not_use_yet(make, make_request):
    scheduler, executor = make(
        strategy="macro", expected=120, lengths={"r0": 120, "r1": 18}, pool=Pool.LP, num_blocks=20
    )
    arrive(executor, make_request, 160, new=140)
    for _ in range(3):
        executor.step()
    arrive(executor, make_request, 14)
    wait_for_memory(scheduler, executor, "r1", 18)
    executor.step()
    assert scheduler.sequences["r1"].lender is scheduler.sequences["r0"]
    executor.drain()
    assert not any(batch.preempted for batch in executor.batches)


@pytest.mark.parametrize(("pool", "first"), [(Pool.LP, "r1"), (Pool.HP, "r0")])
def test_macro_begins_by_value_on_lp_and_by_deadline_on_hp(make, make_request, pool, first):
    """A request that is late has next to no value, and the nearest deadline."""
    _, executor = make(strategy="macro", pool=pool, num_blocks=12)
    executor.now = 10.0
    for name, arrival_s in (("r0", 0.0), ("r1", 9.0)):
        executor.add(make_request(name, arrival_s, 100, 50, Slo(2.0, 0.5)))
    assert [each.request_id for each in executor.step().prefills] == [first]


def test_macro_with_short_memory_keeps_hidden_states(make, make_request):
    scheduler, executor = make(strategy="macro", pool=Pool.LP, num_blocks=12, **HYBRID)
    arrive(executor, make_request, 100, 100, new=60)
    executor.now = 1.0  # their wait has a value
    batch = executor.step()
    assert {each.request_id: each.hidden for each in batch.prefills} == {"r0": False, "r1": True}
    assert (held(scheduler, "r0"), held(scheduler, "r1")) == (7, 4)


@pytest.mark.parametrize(
    ("cache", "num_blocks"), [(CacheKind.KV, 6), (CacheKind.HIDDEN, 3)], ids=lambda each: str(each)
)
def test_memory_of_a_response_is_reserved_by_its_kind_of_cache(make_step, cache, num_blocks):
    step = make_step("econoserve", fresh=1, **HYBRID)
    running = step.inputs.running
    seq = running.decoding["d0"]
    seq.cache = cache
    # Eight blocks of keys and values hold 128 tokens, and it has two.
    assert running.missing(seq, 128) == num_blocks - (cache is CacheKind.HIDDEN)


@pytest.fixture
def lending(make, make_request, monkeypatch):
    """Return a state in which a response has 128 slots for hidden states and 22 tokens, and three
    others, with 21 tokens in two blocks each, wait for memory."""
    monkeypatch.setattr(Admission, "default_cache", CacheKind.HIDDEN)
    scheduler, executor = make(
        strategy=replace(STRATEGIES["econoserve"], hybrid_cache=HybridCache.CHEAP),
        expected=90,
        num_blocks=10,
        kv_padding=0.0,
        lending_buffer=0.0,
        **HYBRID,
    )
    arrive(executor, make_request, 20, new=120)
    executor.step()
    executor.step()
    monkeypatch.setattr(Admission, "default_cache", CacheKind.KV)
    arrive(executor, make_request, 20, 20, 20, new=120)
    executor.step()
    assert scheduler.running.paused.keys() == {"r1", "r2", "r3"}
    return scheduler, executor


@pytest.mark.parametrize(("num_more", "lent"), [(30, True), (44, False)])
def test_lender_of_hidden_states_keeps_what_it_needs_itself(lending, num_more, lent):
    """The lender has 105 free slots: two blocks and 30 steps take 94, three and 44 take 140."""
    scheduler, executor = lending
    for name, expected in (("r1", 1 + num_more), ("r2", 100), ("r3", 100)):
        expect(scheduler, name, expected)
    executor.step()
    assert ("r1" in scheduler.running.decoding) == lent


def test_lender_of_hidden_states_lends_as_long_as_it_has_room(lending):
    """The borrowers take a block, of 32 slots, for 27 steps each."""
    scheduler, executor = lending
    for name in scheduler.running.paused:
        expect(scheduler, name, 28)
    executor.step()
    assert len(scheduler.running.paused) == 1


def test_hidden_response_that_no_memory_is_left_for_goes_on_in_its_own(
    make, make_request, monkeypatch
):
    """Three blocks hold 96 hidden states, of which it has 91."""
    monkeypatch.setattr(Admission, "default_cache", CacheKind.HIDDEN)
    strategy = replace(STRATEGIES["econoserve"], hybrid_cache=HybridCache.CHEAP)
    scheduler, executor = make(strategy=strategy, num_blocks=7, **HYBRID)
    arrive(executor, make_request, 90, 60, 60, new=20)
    executor.step()
    assert len(scheduler.running.paused) == 3 and not scheduler.running.blocks.free
    assert len(executor.step().decodes) == 1


def test_lender_of_hidden_states_gives_more_room_in_a_block(make, make_request, monkeypatch):
    monkeypatch.setattr(Admission, "default_cache", CacheKind.HIDDEN)
    strategy = replace(STRATEGIES["econoserve"], hybrid_cache=HybridCache.CHEAP)
    scheduler, executor = make(
        strategy=strategy, expected=90, num_blocks=40, kv_padding=0.0, **HYBRID
    )
    arrive(executor, make_request, 20, new=120)
    executor.step()
    executor.step()
    lender = scheduler.sequences["r0"]
    assert (held(scheduler, "r0"), lender.num_slots) == (4, 128)
    monkeypatch.setattr(Admission, "default_cache", CacheKind.KV)
    arrive(executor, make_request, 20)
    wait_for_memory(scheduler, executor, "r1", 30)
    borrower = scheduler.sequences["r1"]
    scheduler.running.resume(borrower, 1, lender)
    assert (held(scheduler, "r0"), lender.num_slots) == (3, 96)
    assert borrower.num_slots == 48
    executor.drain()
    assert scheduler.running.blocks.free == 40
