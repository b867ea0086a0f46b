"""Batches in flight count as if they had ended, and are corrected once they have; a decode of a
speculating engine is promised one token of several."""

import random
from dataclasses import replace

import pytest
from support.batch_executor import AheadExecutor
from support.linear_latency import LinearLatency
from support.promised import begin, preempt_young

from macroserve.core.batch import BatchKind, BatchResult
from macroserve.core.request import Slo
from macroserve.core.scheduler.batching.unified import unified_batch
from macroserve.core.scheduler.blocks import BlockLedger
from macroserve.core.scheduler.sequence import State
from macroserve.core.status import Pool
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


NUM_DRAFTS = 3
LOOKAHEAD = 2
"""Slots that the drafter writes beyond the drafted tokens."""


class SpeculatingExecutor(AheadExecutor):
    """The executor accepts some of the drafted tokens of each decode, at random."""

    def __init__(self, *args, seed=0, **kwargs):
        super().__init__(*args, **kwargs)
        self.random = random.Random(seed)
        self.tokens = []

    def take(self, batch, missing, skip_decodes):
        taken = super().take(batch, missing, skip_decodes)
        return replace(taken, drafted=NUM_DRAFTS * len(batch.decodes))

    def settle(self):
        batch, decided_s, promised = self.flights.popleft()
        self.last_end_s = max(decided_s, self.last_end_s) + self.elapsed_s(batch)
        self.now = max(self.now, self.last_end_s)
        come, more = {}, {}
        for request_id, num in promised.items():
            come[request_id] = num
            if request_id in batch.decodes and request_id not in self.ended:
                left = self.lengths[request_id] - self.seen[request_id]
                come[request_id] = min(1 + self.random.randint(0, NUM_DRAFTS), left)
                self.tokens.append(come[request_id])
                if extra := come[request_id] - 1:
                    more[request_id] = extra
                    self.emitted[request_id] += extra
                    if self.computed[request_id]:  # else it lost its cache meanwhile
                        self.computed[request_id] += extra
        self.scheduler.settle(self.come_out(come), more, self.now)

    def check_batch(self, batch):
        super().check_batch(batch)
        num_drafted = NUM_DRAFTS * len(batch.decodes)
        assert batch.num_tokens + num_drafted <= self.scheduler.config.max_batch_tokens

    def check_room(self, request_id, num_tokens):
        config = self.scheduler.config
        held = self.scheduler.running.blocks.held_by(request_id)
        needed = self.computed[request_id] + num_tokens + (self.ahead + 1) * NUM_DRAFTS + LOOKAHEAD
        room = held * config.block_size
        assert min(needed, config.max_model_len) <= room, f"{request_id} outruns its blocks"


@pytest.fixture
def make_speculating(make_scheduler):
    def make(name="unified", ahead=0, **fields):
        slots = (ahead + 1) * NUM_DRAFTS + LOOKAHEAD
        return make_scheduler(name, num_drafts=NUM_DRAFTS, num_draft_slots=slots, **fields)

    return make


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("name", STRATEGIES)
def test_requests_that_get_several_tokens_of_a_step_all_end(
    name, ahead, make_speculating, make_request
):
    """Memory is short, so that some are preempted while tokens are in flight."""
    rnd = random.Random(5)
    lengths = {f"r{i}": rnd.randint(1, 60) for i in range(24)}
    scheduler = make_speculating(name, ahead, num_blocks=24, max_model_len=300, block_size=16)
    executor = SpeculatingExecutor(scheduler, lengths, ahead=ahead)
    for request_id, length in lengths.items():
        executor.add(make_request(request_id, 0.0, rnd.randint(1, 200), length + rnd.randint(0, 9)))
    executor.drain()
    assert executor.seen == lengths
    status = scheduler.status(executor.now)
    assert (status.decodes, status.decoded_tokens) == (len(executor.tokens), sum(executor.tokens))


def test_mean_tokens_of_a_step_are_learned(make_speculating, make_request):
    scheduler = make_speculating()
    scheduler.add_request(make_request("r", new=1000), 0.0)
    begin(scheduler, 0.0, r=1)
    scheduler.settle((), {}, 0.1)
    speculation = scheduler.running.decoding.speculation
    assert (speculation.drafted, speculation.emitted) == (NUM_DRAFTS, 1.0)
    for step in range(600):
        begin(scheduler, step, drafted=2)
        scheduler.settle((), {"r": step % 2}, step + 0.1)
    assert (speculation.drafted, speculation.emitted) == pytest.approx((2.0, 1.5), rel=1e-3)
    decoding, latency = scheduler.running.decoding, scheduler.latency
    work = latency.work((), 1, decoding.num_tokens, 0, speculation.drafted)
    assert (step_s := decoding.step_s(latency)) == latency.predict(work)
    assert scheduler.status(600.0).decode_step_s == pytest.approx(step_s / 1.5, rel=1e-3)


def test_tokens_that_come_together_with_the_promised_one_are_not_slow(
    make_speculating, make_request
):
    scheduler = make_speculating()
    scheduler.add_request(make_request("r", slo=Slo(9.0, 0.1, tbt_s=0.5)), 0.0)
    begin(scheduler, 0.0, r=1)
    for step in range(4):
        begin(scheduler, 0.1 + 0.4 * step, drafted=NUM_DRAFTS)
        scheduler.settle((), {"r": 2} if step else {}, 0.1 + 0.4 * step)
    seq = scheduler.running.decoding["r"]
    assert (seq.num_emitted, seq.num_slow) == (1 + 4 + 2 * 3, 0)


def test_tokens_beyond_the_promised_ones_of_a_preempted_request_are_computed_again(
    make_scheduler, make_request
):
    scheduler = make_scheduler("sarathi", num_blocks=6, block_size=8, num_drafts=NUM_DRAFTS)
    preempt_young(scheduler, make_request)
    seq, waiting_tokens = scheduler.sequences["young"], scheduler.waiting.num_tokens
    scheduler.settle((), {"young": 2}, 0.2)
    assert seq.state is State.WAITING
    assert (seq.num_prompt, scheduler.waiting.num_tokens) == (15 + 9 + 2, waiting_tokens + 2)


def test_complete_request_gets_the_tokens_beyond_the_promised_ones(make_speculating, make_request):
    scheduler = make_speculating()
    scheduler.add_request(make_request("r", new=3), 0.0)
    begin(scheduler, 0.0, r=1)
    scheduler.settle((), {}, 0.1)
    begin(scheduler, 0.1)
    begin(scheduler, 0.1)  # needless, if the drafted token of the one before is accepted
    seq = scheduler.sequences["r"]
    assert seq.state is State.ENDING
    scheduler.settle(("r",), {"r": 1}, 0.2)
    assert (seq.state, seq.num_emitted) == (State.FINISHED, 3)


@pytest.mark.parametrize(("tokens", "blocks"), [(11, 1), (12, 2), (27, 2), (28, 3), (48, 3)])
def test_blocks_have_slots_for_drafted_tokens_within_the_longest_request(tokens, blocks):
    ledger = BlockLedger(10, 16, num_draft_slots=5, max_model_len=48)
    assert ledger.blocks_for(tokens) == blocks
    ledger.grant("a", blocks)
    assert tokens <= ledger.room("a")
    assert ledger.blocks_for(ledger.room("a")) == blocks


def test_blocks_of_many_requests_together_have_no_slots_for_drafted_tokens():
    assert BlockLedger(10, 16, num_draft_slots=5, max_model_len=48).blocks_for(64) == 4


@pytest.mark.parametrize("drafted", [0, 2])
def test_work_of_a_step_is_that_of_the_tokens_it_verified(
    make_speculating, make_request, make_latency, drafted
):
    scheduler, latency = make_speculating(), make_latency()
    scheduler.add_request(make_request("r"), 0.0)
    begin(scheduler, 0.0, r=1)
    scheduler.settle((), {}, 0.1)
    seen = []
    scheduler.latency.observe = lambda work, elapsed_s: seen.append(work)
    batch = begin(scheduler, 0.1, drafted=drafted)
    scheduler.settle((), {}, 0.2)
    assert seen == [latency.work((), 1, 101, 0, drafted)]
    assert batch.predicted_s == scheduler.latency.predict(latency.work((), 1, 101, 0, NUM_DRAFTS))


def test_batch_has_room_for_the_drafted_tokens_of_each_sequence(make_config):
    make_config(max_batch_tokens=64, max_num_seqs=16, num_drafts=NUM_DRAFTS)
    with pytest.raises(ValueError, match="must leave 4 tokens for each sequence: got 63"):
        make_config(max_batch_tokens=63, max_num_seqs=16, num_drafts=NUM_DRAFTS)


@pytest.mark.parametrize("name", ["sarathi", "vllm", "ascendra", "econoserve", "aptserve-s"])
def test_prompts_get_what_drafted_tokens_leave_of_a_batch(name, make_step):
    plans = []
    slo = Slo(1.0, 10.0)
    for drafted in (0, 3):
        fields = {"pool": Pool.LP, "latency": LinearLatency(0.0), "slo": slo}
        step = make_step(name, [0.2] * 8, waiting=(4000,), **fields)
        step.inputs.decoding.speculation.drafted = float(drafted)
        plans.append(sum(pick.num_tokens for pick in step.plan().picks))
    assert plans[0] - plans[1] == 3 * 8


def test_unified_lets_a_step_take_the_time_of_all_its_tokens(make_step):
    """The target is 0.1 s a token, and nothing is saved: 80 ms, and twice that for two tokens."""
    picked = []
    for emitted in (1.0, 2.0):
        step = make_step("unified", [0.0], waiting=(4000,), latency=LinearLatency(0.01))
        step.inputs.decoding.speculation.emitted = emitted
        picked.append(sum(pick.num_tokens for pick in step.plan().picks))
    assert picked[1] - picked[0] >= 79


def test_unified_leaves_the_time_of_drafted_tokens(make_step):
    """A token of a decode takes two milliseconds, as long as two tokens of a prompt."""
    picked = []
    for drafted in (0.0, 1.0):
        step = make_step("unified", [0.0] * 5, waiting=(4000,), latency=LinearLatency(0.01))
        step.inputs.decoding.speculation.drafted = drafted
        picked.append(sum(pick.num_tokens for pick in step.plan().picks))
    assert picked[0] - picked[1] == pytest.approx(2 * 5, abs=1)


def test_unified_gives_no_request_up_that_several_tokens_of_a_step_bring_in_time(make_step):
    """A request is late by 1 s, and a step of 0.15 s gives it two tokens, of 0.1 s each."""
    step = make_step("unified", [-1.0], waiting=(4000,), latency=LinearLatency(0.148))
    step.inputs.decoding.speculation.emitted = 2.0
    assert step.plan().slack_exhausted


def test_pace_is_the_time_of_a_token(make_scheduler, make_request):
    seen = []

    def decide(inputs, admission):
        seen.append(inputs)
        return unified_batch(inputs, admission)._replace(repeatable=False)

    scheduler = make_scheduler("unified", changes={"batch": decide})
    scheduler.add_request(make_request("r"), 0.0)
    for emitted in ({"r": 1}, {}, {}):
        begin(scheduler, 0.0, **emitted)
        scheduler.settle((), {}, 0.1)
    scheduler.running.decoding.speculation.emitted = 2.0
    scheduler.schedule(0.2)
    assert seen[-1].pace_s == scheduler.averages.pace_s / 2 > 0


def test_ecoserve_gives_no_request_up_that_several_tokens_of_a_step_bring_in_time(make_step):
    """A request is late by 1 s, and a step of 0.15 s gives it two tokens, of 0.1 s each."""
    kinds = []
    for emitted in (1.0, 2.0):
        fields = {"changes": {"mean_slack": False}, "latency": LinearLatency(0.148)}
        step = make_step("ecoserve", [-1.0], waiting=(400,), **fields)
        step.inputs.decoding.speculation.emitted = emitted
        kinds.append(step.plan().kind)
    assert kinds == [BatchKind.PREFILL, BatchKind.DECODE]


@pytest.mark.parametrize(("emitted", "num_picked"), [(1.0, 0), (2.0, 1)])
def test_late_request_has_room_while_decodes_take_little_time_for_each_token(
    make_step, emitted, num_picked
):
    """A step of 0.08 s takes most of a target of 0.1 s, and less than half of it for two tokens."""
    latency = LinearLatency(0.078)
    step = make_step("unified", [0.2], waiting=(100,), waited_s=1.5, latency=latency)
    step.inputs.decoding.speculation.emitted = emitted
    assert len(step.pick(512)) == num_picked


def test_memory_costs_less_time_where_steps_give_several_tokens(make_speculating, make_request):
    costs_s = []
    for emitted in (1.0, 2.0):
        scheduler = make_speculating(num_blocks=20)
        scheduler.running.decoding.speculation.emitted = emitted
        scheduler.add_request(make_request("first"), 0.0)
        begin(scheduler, 0.0, first=1)
        scheduler.settle((), {}, 0.1)
        for name in ("second", "third"):
            scheduler.add_request(make_request(name), 0.1)
        costs_s.append(scheduler.sequences["third"].memory_s)
    assert costs_s[0] == pytest.approx(2 * costs_s[1]) != 0
