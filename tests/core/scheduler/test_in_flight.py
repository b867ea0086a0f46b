"""Batches in flight are counted as if they had ended, and corrected once they have."""

from dataclasses import replace

import pytest
from support.promised import begin, preempt_young

from macroserve.core.batch import BatchKind, BatchResult
from macroserve.core.request import Slo
from macroserve.core.scheduler.running import State
from macroserve.core.strategies import STRATEGIES


@pytest.mark.parametrize("name", STRATEGIES)
def test_batches_that_end_before_the_next_begins_are_those_of_results_taken_in_at_once(
    name, make_scheduler, make_executor, make_ahead_executor, make_request
):
    lengths = {f"r{i}": 5 + 5 * i for i in range(12)}
    runs = []
    for make, how in ((make_executor, {}), (make_ahead_executor, {"ahead": 0})):
        executor = make(make_scheduler(name, num_blocks=40), lengths, **how)
        for index, request_id in enumerate(lengths):
            executor.add(make_request(request_id, 0.0, 30 + 20 * index, 60))
        executor.drain()
        runs.append(executor)
    # Their clocks may differ in the last digit.
    batches = [[replace(b, predicted_s=0.0) for b in executor.batches] for executor in runs]
    assert batches[0] == batches[1]
    assert runs[0].last_token_s == pytest.approx(runs[1].last_token_s)


def test_request_in_flight_is_scheduled_on_as_if_its_token_had_come(make_scheduler, make_request):
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r"), 0.0)
    first = begin(scheduler, 0.0, r=1)
    assert first.kind is BatchKind.PREFILL
    assert [begin(scheduler, 0.0).decodes for _ in range(2)] == [("r",), ("r",)]
    scheduler.settle((), {}, 0.1)
    assert scheduler.sequences["r"].num_emitted == 3


def test_batch_is_decided_for_the_end_of_those_in_flight(make_scheduler, make_request):
    """A request that is late by then is dropped now."""
    scheduler = make_scheduler(drop_late=True)
    scheduler.add_request(make_request("r", slo=Slo(9.0, 0.1)), 0.0)
    ends_s = begin(scheduler, 0.0, r=1).predicted_s
    due = Slo(0.9 * ends_s, 0.1)
    scheduler.add_request(make_request("late", slo=due), 0.0)
    assert [item.request_id for item in scheduler.schedule(0.0).handed_back] == ["late"]


def test_batches_behind_one_that_ends_late_are_expected_later(make_scheduler, make_request):
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r"), 0.0)
    begin(scheduler, 0.0, r=1)
    steps_s = [begin(scheduler, 0.0).predicted_s for _ in range(2)]
    scheduler.settle((), {}, 5.0)
    assert scheduler.in_flight.ends_s == pytest.approx(5.0 + sum(steps_s))


def test_first_token_that_came_late_moves_the_budget_of_those_behind_it(
    make_scheduler, make_request
):
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r", slo=Slo(1.0, 0.1)), 0.0)
    begin(scheduler, 0.0, r=1)
    for _ in range(2):
        begin(scheduler, 0.0)
    scheduler.settle((), {}, 0.5)
    # Two more tokens are counted, for which it has two times its target from the first one on.
    assert scheduler.running.decoding["r"].tpot_budget_until_s == pytest.approx(0.5 + 2 * 0.1)


@pytest.mark.parametrize(("ended_s", "attained"), [(0.9, 1), (1.1, 0)])
def test_first_token_counts_when_it_came(make_scheduler, make_request, ended_s, attained):
    """The token was expected long before its deadline at 1 s."""
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r"), 0.0)
    begin(scheduler, 0.0, r=1)
    begin(scheduler, 0.0)
    scheduler.settle((), {}, ended_s)
    scheduler.settle(("r",), {}, ended_s + 0.05)
    assert scheduler.status(2.0).attained == attained


@pytest.mark.parametrize(("step_s", "attained"), [(0.04, 1), (0.06, 0)])
def test_slow_step_counts_by_the_time_that_it_took(make_scheduler, make_request, step_s, attained):
    """The step was expected to take a few milliseconds; the one after it has begun."""
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r", slo=Slo(1.0, 0.1, tbt_s=0.05)), 0.0)
    now = 0.1
    begin(scheduler, 0.0, r=1)
    scheduler.settle((), {}, now)
    begin(scheduler, now)
    for index in range(6):
        begin(scheduler, now)
        now += step_s if index == 3 else 0.01
        scheduler.settle((), {}, now)
    scheduler.settle(("r",), {}, now + 0.01)
    assert scheduler.status(2.0).attained == attained


def test_sequence_that_joins_after_a_slow_step_began_is_not_blamed_for_it(
    make_scheduler, make_request
):
    scheduler = make_scheduler("vllm")
    slo = Slo(1.0, 0.1, tbt_s=0.05)
    scheduler.add_request(make_request("old", slo=slo), 0.0)
    begin(scheduler, 0.0, old=1)
    scheduler.settle((), {}, 0.1)
    begin(scheduler, 0.1)  # the slow step
    scheduler.add_request(make_request("new", slo=slo), 0.1)
    begin(scheduler, 0.1, new=1)
    scheduler.settle((), {}, 0.2)
    scheduler.settle((), {}, 0.21)
    for now in (0.22, 0.23):
        begin(scheduler, now - 0.01)
        scheduler.settle((), {}, now)
    begin(scheduler, 0.23)
    scheduler.settle(("new", "old"), {}, 0.24)
    assert scheduler.status(2.0).attained == 1


def test_tokens_made_after_the_end_do_not_count(make_scheduler, make_request):
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r"), 0.0)
    begin(scheduler, 0.0, r=1)
    for _ in range(3):
        begin(scheduler, 0.0)
    scheduler.settle((), {}, 0.1)
    scheduler.settle(("r",), {}, 0.2)
    assert scheduler.lengths.at_least(make_request("other")) <= 2
    assert [scheduler.lengths.predict(make_request("other")) for _ in range(1)] == [2]
    for now in (0.3, 0.4):
        scheduler.settle((), {}, now)
    assert scheduler.running.blocks.free == scheduler.config.num_blocks


def test_response_that_is_complete_once_all_have_ended_is_not_decoded_again(
    make_scheduler, make_request
):
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r", new=2), 0.0)
    begin(scheduler, 0.0, r=1)
    assert begin(scheduler, 0.0).decodes == ("r",)
    assert scheduler.sequences["r"].state is State.ENDING
    assert begin(scheduler, 0.0).kind is BatchKind.IDLE
    scheduler.settle((), {}, 0.1)
    scheduler.settle(("r",), {}, 0.2)
    assert scheduler.sequences == {}


def test_more_tokens_than_promised_count(make_scheduler, make_request):
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r"), 0.0)
    begin(scheduler, 0.0, r=1)
    begin(scheduler, 0.0)
    scheduler.settle((), {}, 0.1)
    scheduler.settle((), {"r": 3}, 0.2)
    assert scheduler.running.decoding["r"].num_emitted == 5


def test_request_that_ends_while_it_waits_again_is_gone(make_scheduler, make_request):
    """The request was preempted while its last token was in flight."""
    scheduler = make_scheduler("sarathi", num_blocks=6, block_size=8)
    preempt_young(scheduler, make_request)
    scheduler.settle(("young",), {}, 0.2)
    assert "young" not in scheduler.sequences
    assert len(scheduler.waiting) == 0


def test_latency_is_learned_from_the_time_between_two_ends(make_scheduler, make_request):
    """A batch that was decided early waited for the one ahead of it."""
    seen = []
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r"), 0.0)
    observe = scheduler.latency.observe
    scheduler.latency.observe = lambda work, elapsed_s: (
        seen.append(elapsed_s),
        observe(work, elapsed_s),
    )
    begin(scheduler, 0.0, r=1)
    begin(scheduler, 0.01)
    scheduler.settle((), {}, 0.5)
    scheduler.settle((), {}, 0.6)
    begin(scheduler, 0.8)
    scheduler.settle((), {}, 0.85)
    assert seen == pytest.approx([0.5, 0.1, 0.05])


def test_batch_taken_on_in_part_teaches_nothing(make_scheduler, make_request):
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r"), 0.0)
    before = scheduler.latency.prefill_s(100)
    batch = scheduler.schedule(0.0)
    scheduler.promise(batch, BatchResult(0.0, {"r": 60}))
    scheduler.settle((), {}, 5.0)
    assert scheduler.latency.prefill_s(100) == before
    assert scheduler.schedule(5.0).prefills == (replace(batch.prefills[0], num_tokens=40),)
