"""A repeated plan spares the policy where it would decide the same, and ends with every event."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduler_events import apply

from macroserve.core.batch import BatchResult
from macroserve.core.request import Slo
from macroserve.core.status import Pool
from macroserve.core.strategies import STRATEGIES

PATIENT = Slo(ttft_s=60.0, tpot_s=30.0)


class Policy:
    """A policy that counts its decisions, whose plans repeat only if ``repeatable``."""

    def __init__(self, name, *, repeatable=True):
        self.name, self.repeatable, self.num_decided = name, repeatable, 0
        self.strategy = replace(STRATEGIES[name], batch=self.decide)

    def decide(self, inputs, admission):
        self.num_decided += 1
        plan = STRATEGIES[self.name].batch(inputs, admission)
        return plan if self.repeatable else plan._replace(repeatable=False)


slos = st.builds(Slo, st.sampled_from((0.05, 0.5, 5.0)), st.sampled_from((0.001, 0.03, 0.1)))
requests = st.fixed_dictionaries(
    {
        "gap_s": st.sampled_from((0.0, 0.0, 0.01, 0.3)),
        "prompt": st.integers(1, 160),
        "new": st.integers(1, 90),
        "length": st.integers(1, 90),
        "adapter": st.sampled_from((None, None, "a", "b")),
        "slo": slos,
    }
)
events = st.lists(
    st.tuples(
        st.integers(0, 60), st.sampled_from(("abort", "drain", "undrain", "hp", "lp", "stay", "go"))
    ),
    max_size=6,
)
limits = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(18, 60),
        "block_size": st.sampled_from((8, 16)),
        "max_num_seqs": st.integers(1, 8),
        "max_batch_tokens": st.integers(8, 200),
        "chunk_tokens": st.integers(4, 64),
        "drop_late": st.booleans(),
        "max_adapters": st.sampled_from((None, 1)),
        "pool": st.sampled_from(Pool),
        "slo": slos,
    }
)


@pytest.mark.parametrize("name", STRATEGIES)
@given(
    st.lists(requests, min_size=1, max_size=12),
    limits,
    events,
    st.lists(st.tuples(st.sampled_from((0, 1, 30)), st.booleans()), max_size=6),
    st.lists(st.integers(1, 60), max_size=4),
    st.sampled_from((3, 1000)),
    st.sampled_from((None, 0, 1)),
    st.sampled_from((1, 1, 2)),
)
def test_repeated_plans_give_the_batches_and_statuses_of_deciding_each_step(
    name,
    make_scheduler,
    make_executor,
    make_ahead_executor,
    make_pipeline_executor,
    make_request,
    wanted,
    fields,
    events,
    short,
    seen_lengths,
    names_every,
    ahead,
    stages,
):
    found = []
    for repeatable in (True, False):
        policy = Policy(name, repeatable=repeatable)
        scheduler = make_scheduler(policy.strategy, **fields)
        for length in seen_lengths:
            scheduler.lengths.observe(make_request("seen"), length)
        lengths = {f"r{i}": min(w["length"], w["new"]) for i, w in enumerate(wanted)}
        how = {"shortfalls": short, "names_every": names_every}
        if stages > 1:
            executor = make_pipeline_executor(scheduler, lengths, stages=stages, **how)
        elif ahead is None:
            executor = make_executor(scheduler, lengths, **how)
        else:
            executor = make_ahead_executor(scheduler, lengths, ahead=ahead, **how)
        found.append(run(executor, make_request, wanted, events))
    assert found[0] == found[1]


def run(executor, make_request, wanted, events):
    """Run a load; return its batches and the status after each."""
    at_s, arrivals, statuses = 0.0, [], []
    for index, w in enumerate(wanted):
        at_s += w["gap_s"]
        request = make_request(
            f"r{index}", at_s, w["prompt"], w["new"], w["slo"], adapter=w["adapter"]
        )
        arrivals.append((at_s, request))
    coming = sorted(events, reverse=True)
    for iteration in range(5000):
        while arrivals and arrivals[0][0] <= executor.now:
            executor.add(arrivals.pop(0)[1])
        while coming and coming[-1][0] <= iteration:
            apply(coming.pop()[1], executor)
        if not executor.alive:
            if not arrivals:
                break
            executor.now = arrivals[0][0]
            continue
        executor.step()
        statuses.append(executor.scheduler.status(executor.now))
    executor.drain()
    return executor.batches, statuses


@pytest.fixture
def steady(make_scheduler, make_executor, make_request):
    """Return a policy and an executor whose ``num_decoding`` responses have room for all of their
    200 tokens, and whose plan is repeatable."""

    def build(name="econoserve", num_decoding=3, **fields):
        policy = Policy(name)
        scheduler = make_scheduler(policy.strategy, **fields)
        for _ in range(9):
            scheduler.lengths.observe(make_request("seen"), 200)
        executor = make_executor(scheduler, {f"r{i}": 200 for i in range(9)}, names_every=10**9)
        for index in range(num_decoding):
            executor.add(make_request(f"r{index}", 0.0, 40, 200, PATIENT))
        for _ in range(4):
            executor.step()
        assert len(scheduler.running.decoding) == num_decoding
        return policy, executor

    return build


def decides(policy, executor):
    """Run a step; return whether the policy decided it."""
    before = policy.num_decided
    executor.step()
    return policy.num_decided > before


@pytest.mark.parametrize("name", ["vllm", "sarathi", "prefill-first", "econoserve", "unified"])
def test_steady_decodes_are_decided_once_in_a_block_at_most(steady, name):
    policy, executor = steady(name)
    before = policy.num_decided
    for _ in range(48):
        executor.step()
    # EconoServe has reserved all blocks; the others take one after every 16 tokens.
    most = 1 if name == "econoserve" else 6
    assert policy.num_decided - before <= most


@pytest.mark.parametrize("name", ["vllm", "sarathi", "prefill-first", "econoserve", "unified"])
def test_decodes_that_take_all_seats_are_decided_once_in_a_block_while_others_wait(
    steady, make_request, name
):
    policy, executor = steady(name, max_num_seqs=3, pool=Pool.LP)
    executor.scheduler.let_offload(False)
    executor.add(make_request("r8", executor.now, 40, 200, PATIENT))
    before = policy.num_decided
    for _ in range(48):
        executor.step()
    assert policy.num_decided - before <= 6
    assert len(executor.scheduler.waiting) == 1


@pytest.mark.parametrize("pool", Pool)
def test_decodes_are_decided_each_step_while_a_request_may_leave_for_an_hp_instance(
    steady, make_request, pool
):
    """Requests of an HP instance never leave it."""
    policy, executor = steady("unified", max_num_seqs=3, pool=pool)
    executor.add(make_request("r8", executor.now, 40, 200, PATIENT))
    before = policy.num_decided
    for _ in range(48):
        executor.step()
    assert policy.num_decided - before == 48 if pool is Pool.LP else policy.num_decided < before + 7


def test_responses_of_one_length_run_without_a_decision_until_that_length(steady):
    """A group of three starts in one step and returns in one (section 3.3.2)."""
    policy, executor = steady()
    before, batches = policy.num_decided, len(executor.batches)
    while executor.alive:
        executor.step()
    assert len({executor.last_token_s[f"r{i}"] for i in range(3)}) == 1
    assert len(executor.batches) - batches > 150
    assert policy.num_decided - before <= 2


@pytest.mark.parametrize(
    "event",
    [
        lambda e, new: e.add(new("r8", e.now, 40, 200, PATIENT)),
        lambda e, new: e.finish("r1"),
        lambda e, new: e.scheduler.drain(),
        lambda e, new: e.scheduler.drain(False),
        lambda e, new: e.scheduler.set_pool(Pool.LP),
        lambda e, new: e.scheduler.let_offload(False),
        lambda e, new: e.scheduler.loaded(()),
        lambda e, new: e.scheduler.running.blocks.grant("r0", 1),
    ],
    ids=["add", "finish", "drain", "undrain", "pool", "offload", "loaded", "blocks"],
)
def test_each_event_ends_the_repetition(steady, make_request, event):
    policy, executor = steady()
    assert not decides(policy, executor)
    before = policy.num_decided
    event(executor, make_request)
    executor.scheduler.schedule(executor.now)
    assert policy.num_decided == before + 1


def test_response_that_ends_ends_the_repetition(steady):
    policy, executor = steady()
    executor.lengths["r1"] = executor.seen["r1"] + 2
    assert not decides(policy, executor)
    executor.step()
    assert executor.ended == {"r1": "finished"}
    assert decides(policy, executor)
    assert executor.batches[-1].decodes == ("r0", "r2")


def test_tokens_of_single_decodes_end_the_repetition(steady):
    policy, executor = steady()
    scheduler = executor.scheduler
    batch = scheduler.schedule(executor.now)
    scheduler.update(batch, BatchResult(0.1, emitted={"r0": 0}, decoded=1), executor.now + 0.1)
    before = policy.num_decided
    scheduler.schedule(executor.now + 0.1)
    assert policy.num_decided == before + 1


def test_response_that_outruns_its_length_ends_the_repetition(steady):
    policy, executor = steady()
    for seq in executor.scheduler.running.decoding.values():
        executor.scheduler.running.decoding.expect(seq, seq.num_emitted + 2)
    assert not decides(policy, executor)
    executor.step()
    assert decides(policy, executor)


def test_status_keeps_the_repetition(steady):
    policy, executor = steady()
    executor.scheduler.status(executor.now)
    assert not decides(policy, executor)


@pytest.mark.parametrize("fields", [{"drop_late": True}, {"max_late_wait_s": 2.0}])
def test_late_request_is_refused_while_a_plan_takes_all_seats(steady, make_request, fields):
    policy, executor = steady("unified", max_num_seqs=3, **fields)
    executor.scheduler.let_offload(False)
    slo = Slo(ttft_s=0.5, tpot_s=30.0)
    executor.add(make_request("r8", executor.now, 40, 200, slo))
    executor.step()
    assert not decides(policy, executor)
    executor.now += 3.0
    executor.step()
    assert executor.ended["r8"] == "drop"
    assert sorted(executor.batches[-1].decodes) == ["r0", "r1", "r2"]


def test_plan_with_drafts_is_not_repeated(steady, make_request):
    """A prompt waits that has no seat."""
    policy, executor = steady(max_num_seqs=3, num_drafts=1)
    executor.add(make_request("r8", executor.now, 40, 200, PATIENT))
    executor.step()
    assert decides(policy, executor)


def test_prompt_that_has_no_room_keeps_the_repetition(steady, make_request):
    policy, executor = steady(max_num_seqs=3)
    executor.add(make_request("r8", executor.now, 40, 200, PATIENT))
    executor.step()
    assert not decides(policy, executor)
    executor.drain()
    assert executor.ended["r8"] == "finished"
