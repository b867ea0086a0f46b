"""A pipeline runs each batch of the scheduler as a round of even micro-batches."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.batch import Batch, BatchKind, BatchResult
from macroserve.core.scheduler.rounds import LEAST_PIECE_TOKENS, Rounds

LONG = 1000
"""Tokens of responses that last as long as a test."""


@pytest.fixture
def make_pipeline(make_scheduler, make_pipeline_executor, make_request):
    """Return a function that fills a pipeline with prompts of the given lengths."""

    def build(stages, prompts, new=LONG, *, strategy="vllm", **fields):
        fields = {"max_num_seqs": 64, "max_batch_tokens": 4096, "num_blocks": 4096, **fields}
        scheduler = make_scheduler(strategy, **fields)
        lengths = {f"r{number}": new for number in range(len(prompts))}
        executor = make_pipeline_executor(scheduler, lengths, stages=stages)
        for name, prompt in zip(lengths, prompts, strict=True):
            executor.add(make_request(name, 0.0, prompt, new))
        return executor

    return build


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_decodes_that_began_together_fill_all_stages_evenly(stages, make_pipeline):
    executor = make_pipeline(stages, [8] * 12)
    for _ in range(3 * stages):
        executor.step()
    sizes = [len(executor.step().decodes) for _ in range(5 * stages)]
    assert sizes == [12 // stages] * (5 * stages)


def test_lone_decode_is_in_one_micro_batch_of_each_round(make_pipeline):
    executor = make_pipeline(4, [8])
    executor.step()
    decodes = [executor.step().decodes for _ in range(16)]
    assert Counter(decodes) == {("r0",): 4, (): 12}


@given(
    st.integers(2, 5),
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 700)), min_size=1, max_size=20),
)
def test_decode_is_never_left_out_of_two_rounds_in_a_row(
    make_scheduler, make_pipeline_executor, make_request, stages, arrivals
):
    scheduler = make_scheduler("vllm", max_num_seqs=64, max_batch_tokens=2048, num_blocks=4096)
    lengths = {f"r{number}": LONG for number in range(len(arrivals))}
    executor = make_pipeline_executor(scheduler, lengths, stages=stages)
    due = {}
    for slot in range(20 * stages):
        for name, (at, prompt) in zip(lengths, arrivals, strict=True):
            if at * stages == slot:
                executor.add(make_request(name, 0.0, prompt, LONG))
        for name in executor.step().decodes:
            due[name] = slot + 3 * stages - 1
        assert all(slot < last for last in due.values())


def test_prompt_is_cut_into_pieces_that_follow_each_other(make_pipeline):
    executor = make_pipeline(4, [2000])
    pieces = [[p.num_tokens for p in executor.step().prefills] for _ in range(4)]
    assert pieces == [[500]] * 4


def test_short_prompts_stay_whole_in_the_first_stages(make_pipeline):
    executor = make_pipeline(4, [100, LEAST_PIECE_TOKENS - 100, 90])
    pieces = [[p.num_tokens for p in executor.step().prefills] for _ in range(4)]
    assert pieces == [[100, LEAST_PIECE_TOKENS - 100], [90], [], []]


def test_micro_batch_stays_within_its_share_of_the_tokens(make_pipeline):
    executor = make_pipeline(2, [3000] * 8, max_batch_tokens=512)
    assert [executor.step().num_tokens for _ in range(8)] == [256] * 8


def test_scheduler_learns_the_time_of_a_round(make_pipeline, monkeypatch):
    executor = make_pipeline(2, [8] * 4)
    observed = []
    monkeypatch.setattr(
        executor.scheduler.latency, "observe", lambda work, elapsed_s: observed.append(elapsed_s)
    )
    executor.elapsed_s = lambda batch: 0.25
    for _ in range(24):
        executor.step()
    assert observed[2:] == [0.5] * len(observed[2:]) and len(observed) >= 9
    assert executor.scheduler.averages.pace_s > 0


def test_pipeline_whose_requests_have_all_gone_begins_a_new_round(make_scheduler, make_request):
    """The rest of the old round is dropped, and the idle time is not learned from."""
    scheduler = make_scheduler("vllm", max_num_seqs=8, max_batch_tokens=1024, num_blocks=256)
    rounds = Rounds(scheduler, 2)
    observed = []
    scheduler.latency.observe = lambda work, elapsed_s: observed.append(elapsed_s)
    for name in ("ends", "leaves"):
        scheduler.add_request(make_request(name, prompt=500), 0.0)
    (first, *_) = rounds.schedule(0.0).prefills
    assert first.request_id == "ends"
    rounds.promise(Batch(BatchKind.PREFILL, (first,)), BatchResult(0.0, {"ends": 500}, {"ends": 1}))
    scheduler.finish("leaves")
    rounds.settle(("ends",), {}, 0.25)
    scheduler.add_request(make_request("next", 99.0, prompt=10), 99.0)
    (prefill,) = rounds.schedule(99.0).prefills
    assert prefill.request_id == "next"
    assert set(scheduler.sequences) == {"next"}
    assert max(observed, default=0.0) < 1.0


def test_request_that_ended_is_in_no_later_micro_batch(make_pipeline):
    """The scheduler knows of its end when the round has ended; the executor checks the batches."""
    executor = make_pipeline(2, [8] * 4, new=5)
    executor.drain()
    assert set(executor.ended.values()) == {"finished"}
    assert executor.scheduler.status(executor.now).num_running == 0


def test_request_that_ended_is_not_preempted(make_scheduler, make_request, monkeypatch):
    """The scheduler takes it for running while another micro-batch of its round is in flight."""
    scheduler = make_scheduler("vllm", max_batch_tokens=1024, num_blocks=256)
    rounds = Rounds(scheduler, 2)
    for name in ("ends", "goes on"):
        scheduler.add_request(make_request(name, prompt=500), 0.0)
    for name in ("ends", "goes on"):
        batch = rounds.schedule(0.0)
        assert [prefill.request_id for prefill in batch.prefills] == [name]
        rounds.promise(batch, BatchResult(0.0, {name: 500}, {name: 1}))
    rounds.settle(("ends",), {}, 0.25)
    both = Batch(BatchKind.IDLE, preempted=("ends", "goes on"))
    monkeypatch.setattr(scheduler, "schedule", lambda now: both)
    assert rounds.schedule(0.25).preempted == ("goes on",)


def test_lone_request_ends_with_its_micro_batch(make_pipeline):
    """The empty micro-batches behind it are not waited for."""
    executor = make_pipeline(4, [8], new=1)
    while not executor.ended:
        executor.step()
    assert executor.scheduler.sequences == {}


def test_piece_of_a_prompt_of_which_the_cache_has_the_rest_is_dropped(make_scheduler, make_request):
    scheduler = make_scheduler("vllm", max_batch_tokens=1024, num_blocks=256)
    rounds = Rounds(scheduler, 2)
    scheduler.add_request(make_request("r", prompt=800), 0.0)
    first = rounds.schedule(0.0)
    assert [p.num_tokens for p in first.prefills] == [400]
    rounds.promise(first, BatchResult(0.0, {"r": 100}, {"r": 1}, cached={"r": 700}))
    assert rounds.schedule(0.0).prefills == ()
    assert scheduler.status(0.0).cached_tokens == 700


def test_decode_that_finds_no_micro_batch_gets_no_token(make_pipeline):
    """Three decodes come from one micro-batch, which takes two of them in the next round."""
    executor = make_pipeline(2, [LEAST_PIECE_TOKENS, 90, 90, 76])
    decodes = [executor.step().decodes for _ in range(4)]
    assert decodes == [(), (), ("r0",), ("r1", "r2")]
    assert executor.scheduler.sequences["r3"].num_emitted == 1
    assert [executor.step().decodes for _ in range(2)] == [("r0", "r3"), ("r1", "r2")]
