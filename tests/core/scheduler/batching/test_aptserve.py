"""Apt-Serve's batches choose prefills or decodes, the requests, and each one's cache."""

import pytest

from macroserve.core.batch import BatchKind
from macroserve.core.request import Slo
from macroserve.core.strategies import STRATEGIES

PATIENT = Slo(ttft_s=60.0, tpot_s=30.0)


@pytest.fixture
def make(make_scheduler, make_executor):
    """Return a scheduler with Apt-Serve's policy, and an executor that runs its batches."""

    def build(strategy="aptserve", **fields):
        scheduler = make_scheduler(strategy, **fields)
        return scheduler, make_executor(scheduler, {f"r{i}": 40 for i in range(100)})

    return build


def arrive(executor, make_request, number, *, prompt=100, at_s=None, slo=PATIENT):
    first = len(executor.requests)
    for index in range(first, first + number):
        arrival_s = executor.now if at_s is None else at_s
        executor.add(make_request(f"r{index}", arrival_s, prompt, 50, slo))


def hidden(batch):
    return {prefill.request_id for prefill in batch.prefills if prefill.hidden}


def prefilled(batch):
    return [prefill.request_id for prefill in batch.prefills]


def test_aptserve_runs_prefills_or_decodes_by_the_longer_total_wait(make, make_request):
    _, executor = make()
    arrive(executor, make_request, 2)
    assert executor.step().kind is BatchKind.PREFILL
    arrive(executor, make_request, 1, at_s=executor.now - 1e-6)
    executor.now += 1.0  # two readers and one prompt have waited for the same time
    assert executor.step().kind is BatchKind.DECODE
    executor.now += 0.1  # the readers have waited less now
    assert prefilled(executor.step()) == ["r2"]


def test_aptserve_with_short_memory_prefers_long_waits(make, make_request):
    scheduler, executor = make(num_blocks=19)
    executor.now = 1.0
    arrive(executor, make_request, 1, prompt=150, at_s=0.9)
    arrive(executor, make_request, 1, prompt=150, at_s=0.2)
    arrive(executor, make_request, 1, prompt=100, at_s=0.5)
    assert prefilled(executor.step()) == ["r1", "r2"]
    assert len(scheduler.waiting) == 1


@pytest.mark.parametrize(("late_value", "first"), [(0.0, "r1"), (0.4, "r0")])
def test_aptserve_late_request_gives_way_unless_late_value_counts(
    make, make_request, late_value, first
):
    _, executor = make(num_blocks=12, late_value=late_value)
    executor.now = 10.0
    arrive(executor, make_request, 1, at_s=0.0, slo=Slo(2.0, 0.5))
    arrive(executor, make_request, 1, at_s=9.0, slo=Slo(2.0, 0.5))
    assert prefilled(executor.step()) == [first]


def test_aptserve_late_request_with_room_is_served(make, make_request):
    _, executor = make()
    executor.now = 10.0
    arrive(executor, make_request, 1, at_s=0.0, slo=Slo(2.0, 0.5))
    for _ in range(100):
        executor.step()
    assert executor.ended == {"r0": "finished"}


def test_aptserve_with_short_memory_hides_caches_to_run_more(make, make_request):
    def run(**fields):
        _, executor = make(num_blocks=40, **fields)
        executor.now = 30.0
        arrive(executor, make_request, 10, at_s=0.0)
        return executor.step()

    assert len(prefilled(run())) == 5
    assert not hidden(run())
    batch = run(hidden_states_per_block=32)
    assert len(prefilled(batch)) == 10 or sum(p.num_tokens for p in batch.prefills) > 400
    assert hidden(batch)


def test_aptserve_with_enough_memory_hides_no_cache(make, make_request):
    _, executor = make(hidden_states_per_block=32)
    executor.now = 30.0
    arrive(executor, make_request, 5, at_s=0.0)
    assert not hidden(executor.step())


def test_hidden_caches_hold_half_the_blocks_until_they_end(make, make_request):
    scheduler, executor = make(num_blocks=16, hidden_states_per_block=32)
    executor.now = 30.0
    arrive(executor, make_request, 3, at_s=0.0)
    batch = executor.step()
    assert len(hidden(batch)) >= 2
    while executor.alive:
        executor.step()
        for seq in scheduler.running:
            held = scheduler.running.blocks.held_by(seq.request_id)
            assert seq.num_slots == held * (32 if seq.request_id in executor.hidden else 16)
    assert set(executor.ended.values()) == {"finished"}


def test_strategies_without_hybrid_cache_hide_no_cache(make, make_request):
    for name in STRATEGIES.keys() - {"aptserve", "aptserve-s"}:
        _, executor = make(name, num_blocks=40, hidden_states_per_block=32)
        arrive(executor, make_request, 10, at_s=-1.0)
        assert not hidden(executor.step())


def test_chunked_aptserve_mixes_decodes_with_chosen_prompts(make, make_request):
    _, executor = make("aptserve-s", chunk_tokens=128, hidden_states_per_block=32)
    arrive(executor, make_request, 1, prompt=50)
    executor.step()
    arrive(executor, make_request, 2, prompt=200, at_s=executor.now - 0.5)
    batch = executor.step()
    assert batch.kind is BatchKind.MIXED
    assert batch.decodes == ("r0",)
    assert sum(prefill.num_tokens for prefill in batch.prefills) == 127


def test_aptserve_preempted_request_waits_for_an_iteration(make, make_request):
    scheduler, executor = make("aptserve-s", num_blocks=16, hidden_states_per_block=32)
    scheduler.latency.rebuild_s_per_token = 1e-9  # so that the hidden cache, which fits, pays
    arrive(executor, make_request, 2)
    preempted = set()
    while executor.alive:
        executor.now += 0.01
        batch = executor.step()
        assert not {*batch.preempted} & {*prefilled(batch)}
        preempted |= {*batch.preempted}
    assert preempted
    assert set(executor.ended.values()) == {"finished"}
