"""The methods of the instance scheduler are tested one by one."""

from dataclasses import replace
from functools import partial

import pytest

from macroserve.core.batch import BatchKind, BatchResult
from macroserve.core.request import Slo
from macroserve.core.scheduler.estimators import SHARE_FLOOR
from macroserve.core.scheduler.scheduler import Refusal
from macroserve.core.status import Phase
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import HybridCache, Ordering


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"num_blocks": 0}, "num_blocks must be at least 1"),
        ({"max_num_seqs": 600}, "one token for each sequence"),
        ({"changes": {"ordering": Ordering.FCFS}}, "needs the order of deadlines"),
    ],
)
def test_config_that_contradicts_itself_is_refused(make_config, fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_config(**fields)


@pytest.mark.parametrize(
    ("prompt", "new", "refusal"),
    [
        (100, 50, None),
        (2047, 2049, None),  # 256 blocks of 16
        (2048, 2049, Refusal.NEVER_FITS),
        (4096, 1, Refusal.TOO_LONG),
    ],
)
def test_request_that_could_never_run_is_refused(
    make_scheduler, make_request, prompt, new, refusal
):
    scheduler = make_scheduler()
    assert scheduler.add_request(make_request("r", prompt=prompt, new=new), 0.0) == refusal
    assert scheduler.status(0.0).num_waiting == (refusal is None)


def test_request_with_a_present_id_is_refused(make_scheduler, make_request):
    scheduler = make_scheduler()
    assert scheduler.add_request(make_request("r"), 0.0) is None
    assert scheduler.add_request(make_request("r"), 0.0) is Refusal.DUPLICATE
    scheduler.finish("r")
    assert scheduler.add_request(make_request("r"), 0.0) is None


def test_request_runs_from_prefill_to_its_last_token(make_scheduler, make_executor, make_request):
    executor = make_executor(make_scheduler(), {"r": 3})
    executor.add(make_request("r", prompt=700))
    executor.drain()
    assert [batch.kind for batch in executor.batches] == [
        BatchKind.PREFILL,  # 512 tokens
        BatchKind.PREFILL,  # the rest, and the first token
        BatchKind.DECODE,
        BatchKind.DECODE,
    ]


@pytest.mark.parametrize("iterations", [0, 1, 2, 4])
def test_finish_in_any_state_frees_all_blocks(
    make_scheduler, make_executor, make_request, iterations
):
    scheduler = make_scheduler()
    executor = make_executor(scheduler, {"r": 10})
    executor.add(make_request("r", prompt=700))
    for _ in range(iterations):
        executor.step()
    executor.finish("r")
    executor.finish("r")
    executor.finish("unknown")
    status = scheduler.status(executor.now)
    assert status.free_blocks == status.num_blocks
    assert (status.num_waiting, status.num_running, status.finished) == (0, 0, 0)
    assert scheduler.schedule(executor.now).kind is BatchKind.IDLE


def test_result_of_a_request_that_left_is_ignored(make_scheduler, make_request):
    """The same id may be waiting again when the old batch reports."""
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r"), 0.0)
    batch = scheduler.schedule(0.0)
    scheduler.finish("r")
    scheduler.add_request(make_request("r"), 0.1)
    scheduler.update(batch, BatchResult(0.1, {"r": 100}, {"r": 1}, ("r",)), 0.1)
    status = scheduler.status(0.1)
    assert (status.num_waiting, status.num_running, status.finished) == (1, 0, 0)


def test_result_with_less_than_asked_is_taken_in(make_scheduler, make_request):
    scheduler = make_scheduler("vllm")
    for name in "ab":
        scheduler.add_request(make_request(name, prompt=100, new=5), 0.0)
    batch = scheduler.schedule(0.0)
    assert [p.num_tokens for p in batch.prefills] == [100, 100]
    scheduler.update(batch, BatchResult(0.1, {"a": 60}, {"a": 0}), 0.1)
    batch = scheduler.schedule(0.1)
    assert [(p.request_id, p.num_tokens) for p in batch.prefills] == [("a", 40), ("b", 100)]
    scheduler.update(batch, BatchResult(0.1, {"a": 40, "b": 100}, {"a": 1, "b": 1}), 0.2)
    batch = scheduler.schedule(0.2)
    assert batch.decodes == ("a", "b")
    scheduler.update(batch, BatchResult(0.1, {}, {"b": 1, "a": 0}), 0.3)
    assert scheduler.schedule(0.3).decodes == ("a", "b")


def test_emitted_token_of_a_partial_prefill_completes_it(make_scheduler, make_request):
    """The executor reports fewer tokens than it took from a prefix cache."""
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r"), 0.0)
    batch = scheduler.schedule(0.0)
    scheduler.update(batch, BatchResult(0.1, {"r": 4}, {"r": 1}), 0.1)
    assert scheduler.schedule(0.1).decodes == ("r",)
    scheduler.add_request(make_request("s"), 0.1)
    batch = scheduler.schedule(0.1)
    scheduler.update(batch, BatchResult(0.1, {"s": 4}, {"s": 1}, ("s",)), 0.2)
    assert scheduler.status(0.2).attained == 1


def test_prefill_without_a_token_emits_it_in_the_next_batch(make_scheduler, make_request):
    """The executor holds the first token back and reports it with the next."""
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r", new=2), 0.0)
    batch = scheduler.schedule(0.0)
    scheduler.update(batch, BatchResult(0.1, {"r": 100}, {"r": 0}), 0.1)
    batch = scheduler.schedule(0.1)
    assert batch.decodes == ("r",)
    scheduler.update(batch, BatchResult(1.0, {}, {"r": 2}, ("r",)), 1.1)
    status = scheduler.status(1.1)
    assert (status.finished, status.attained) == (1, 0), "its TTFT target was 1 s"


def test_preempted_request_recomputes_its_tokens(make_scheduler, make_executor, make_request):
    scheduler = make_scheduler("vllm", num_blocks=14)
    executor = make_executor(scheduler, {"a": 60, "b": 60})
    executor.add(make_request("a", prompt=90, new=60))
    executor.add(make_request("b", 0.001, prompt=90, new=60))
    while not executor.batches or not executor.batches[-1].preempted:
        executor.step()
    assert executor.batches[-1].preempted == ("b",)
    assert not executor.batches[-1].prefills
    emitted = executor.emitted["b"]
    waits_s = scheduler.status(executor.now).waiting_prefill_s
    prefill_s = partial(scheduler.latency.batched_prefill_s, batch_tokens=512)
    assert waits_s == prefill_s(90 + emitted) > prefill_s(90)
    while not executor.batches[-1].prefills:
        executor.step()
    again = executor.batches[-1].prefills[0]
    assert (again.request_id, again.num_tokens) == ("b", 90 + emitted)
    executor.drain()
    assert executor.ended == {"a": "finished", "b": "finished"}


# -- order


@pytest.mark.parametrize(
    ("strategy", "expected"), [("vllm", ["slack", "tight"]), ("ascendra", ["tight", "slack"])]
)
def test_waiting_requests_are_prefilled_in_the_order_of_the_strategy(
    make_scheduler, make_request, strategy, expected
):
    scheduler = make_scheduler(strategy)
    scheduler.add_request(make_request("slack", 0.0, slo=Slo(9.0, 0.1)), 0.2)
    scheduler.add_request(make_request("tight", 0.1, slo=Slo(1.0, 0.1)), 0.2)
    assert [p.request_id for p in scheduler.schedule(0.2).prefills] == expected


def test_request_in_mid_stream_is_prefilled_first(make_scheduler, make_request):
    for name, strategy in STRATEGIES.items():
        if strategy.hybrid_cache is HybridCache.VALUE:
            continue  # it goes by how long each has waited
        scheduler = make_scheduler(name)
        scheduler.add_request(make_request("new", 0.0), 0.2)
        scheduler.add_request(make_request("streaming", 0.1, streamed=5), 0.2)
        assert scheduler.schedule(0.2).prefills[0].request_id == "streaming"


@pytest.mark.parametrize(
    ("tpot_s", "max_num_seqs", "share"),
    [
        (0.001, 16, SHARE_FLOOR),  # decodes alone take longer than their target
        (1.0, 1, 0.5),  # the prompt waits for a seat, and not for time
    ],
)
def test_service_time_beside_decodes_is_longer(
    make_scheduler, make_executor, make_request, tpot_s, max_num_seqs, share
):
    """Decodes beside them slow prefills down, by as much as they recently did."""
    slo = Slo(30.0, tpot_s)
    scheduler = make_scheduler(slo=slo, max_num_seqs=max_num_seqs, num_blocks=4000)
    executor = make_executor(scheduler, {"runs": 3000, "waits": 1})
    prefill_s = scheduler.latency.batched_prefill_s(100, 512)

    def service_s(name):
        scheduler.add_request(make_request(name, executor.now), executor.now)
        seq = scheduler.sequences[name]
        scheduler.finish(name)
        assert seq.cost_s == pytest.approx(seq.service_s)
        return seq.service_s

    executor.add(make_request("runs", prompt=10, new=3000, slo=slo))
    for _ in range(500):
        executor.step()
    assert service_s("before") == pytest.approx(prefill_s / 0.5, rel=0.05), "nobody waited so far"
    executor.add(make_request("waits", slo=slo))
    for _ in range(1000):
        executor.step()
    assert service_s("after") == pytest.approx(prefill_s / share, rel=0.1)


# -- status


def test_status_of_an_idle_instance(make_scheduler):
    status = make_scheduler().status(3.0)
    assert (status.seq, status.phase) == (1, Phase.IDLE)
    assert (status.saved_tpot_mean_s, status.saved_tpot_p10_s) == (None, None)
    assert status.waiting_prefill_s == status.phase_prefill_s == status.oldest_wait_s == 0
    assert status.free_blocks == status.num_blocks == 256 and status.block_size == 16
    assert status.prefill_s_per_token > 0


def test_status_of_a_busy_instance_counts_requests_tokens_and_blocks(
    make_scheduler, make_executor, make_request
):
    scheduler = make_scheduler("vllm", max_num_seqs=2)
    executor = make_executor(scheduler, {"a": 40, "b": 2, "c": 9})
    for name in "abc":
        executor.add(make_request(name, prompt=200, new=40))
    status = scheduler.status(0.5)
    assert (status.num_waiting, status.waiting_tokens) == (3, 600)
    assert status.admitted == ("a", "b", "c")
    assert status.remaining_tokens == 120
    assert status.oldest_wait_s == 0.5
    expected_s = 3 * scheduler.latency.batched_prefill_s(200, 512)
    assert status.waiting_prefill_s == pytest.approx(expected_s)
    assert status.phase_prefill_s == pytest.approx(expected_s)
    executor.step()
    status = scheduler.status(executor.now)
    assert status.admitted == ()
    assert (status.num_waiting, status.num_running, status.num_decoding) == (1, 2, 2)
    assert (status.phase, status.waiting_tokens) == (Phase.PREFILL, 200)
    assert status.phase_prefill_s == pytest.approx(expected_s), "done or not"
    assert status.remaining_tokens == 39 + 39 + 40
    assert status.saved_tpot_p10_s is None, "nothing but first tokens is out"
    executor.step()
    status = scheduler.status(executor.now)
    assert (status.phase, status.num_running, status.finished, status.attained) == (
        Phase.DECODE,
        1,
        1,
        1,
    )
    assert status.phase_prefill_s == 0, "a new phase began"
    step_s = executor.batches[-1].predicted_s
    assert status.saved_tpot_mean_s == pytest.approx(0.1 - step_s, abs=1e-3)
    assert status.decode_step_s > 0
    assert status.seq == 3


def test_status_counts_the_rest_of_a_partial_prompt_as_waiting(
    make_scheduler, make_executor, make_request
):
    scheduler = make_scheduler()
    executor = make_executor(scheduler, {"r": 2})
    executor.add(make_request("r", -1.0, prompt=700))
    executor.step()
    status = scheduler.status(executor.now)
    assert (status.num_waiting, status.num_running, status.waiting_tokens) == (0, 1, 188)
    whole_s = scheduler.latency.batched_prefill_s(700, 512)
    assert 0 < status.waiting_prefill_s < 0.5 * whole_s
    assert status.oldest_wait_s == pytest.approx(executor.now + 1.0)


def test_status_of_few_waiting_tokens_has_the_time_of_a_batch(make_scheduler, make_request):
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r", prompt=3), 0.0)
    status = scheduler.status(0.0)
    one_s = scheduler.latency.prefill_s(1)
    assert status.waiting_prefill_s == status.phase_prefill_s == one_s


def test_status_with_mixed_batches_counts_waiting_prefills_as_pending(
    make_scheduler, make_executor, make_request
):
    scheduler = make_scheduler("sarathi", chunk_tokens=64)
    executor = make_executor(scheduler, {"a": 30, "b": 30})
    executor.add(make_request("a", prompt=40))
    executor.step()
    executor.add(make_request("b", prompt=60))
    assert executor.step().kind is BatchKind.MIXED
    assert scheduler.status(executor.now).phase_prefill_s == 0


# -- learning


def test_latency_model_learns_from_batches_that_ran_as_planned(make_scheduler, make_request):
    scheduler = make_scheduler()
    prior = scheduler.latency.coefficients
    scheduler.add_request(make_request("r", prompt=100), 0.0)
    batch = scheduler.schedule(0.0)
    scheduler.update(batch, BatchResult(9.0, {"r": 10}), 9.0)
    assert scheduler.latency.coefficients == prior, "less was done"
    batch = scheduler.schedule(9.0)
    scheduler.update(replace(batch), BatchResult(9.0, {"r": 90}, {"r": 1}), 18.0)
    assert scheduler.latency.coefficients == prior, "not the batch last planned"
    batch, predicted_s = scheduler.schedule(18.0), scheduler.latency.prefill_s(100)
    scheduler.update(batch, BatchResult(9.0, {}, {"r": 1}), 27.0)
    assert scheduler.latency.prefill_s(100) > predicted_s


def test_length_predictor_learns_from_ended_responses(make_scheduler, make_executor, make_request):
    scheduler = make_scheduler()
    executor = make_executor(scheduler, {"a": 7})
    executor.add(make_request("a", new=200))
    executor.drain()
    scheduler.add_request(make_request("b", new=200), executor.now)
    assert scheduler.status(executor.now).remaining_tokens == 7


def test_request_cost_with_short_memory_is_its_share_of_memory(
    make_scheduler, make_executor, make_request
):
    """The cost lasts as long as the response takes at the present pace."""
    scheduler = make_scheduler(num_blocks=64, max_num_seqs=16)
    executor = make_executor(scheduler, {f"r{i}": 200 for i in range(4)})
    for index in range(4):
        executor.add(make_request(f"r{index}", 0.0, 200, 40))
    while scheduler.status(executor.now).num_decoding < 4:
        executor.step()
    latency, decoding = scheduler.latency, scheduler.running.decoding
    pace_s = latency.predict(latency.work((), 4, decoding.num_tokens))
    executor.add(make_request("next", executor.now, 150, 90))
    # 240 of 1,024 tokens, in blocks.
    assert scheduler.sequences["next"].cost_s == pytest.approx(15 / 64 * 90 * pace_s)
    assert scheduler.sequences["next"].service_s < 15 / 64 * 90 * pace_s


@pytest.mark.parametrize(
    ("length", "pace_s", "is_spent"),
    [
        (40, 0.05, True),
        (1, 0.05, False),  # nothing is saved after the first token
        (40, 0.2, False),  # nor where steps took more than the target of late
    ],
)
def test_prefill_beside_first_tokens_spends_time_that_will_be_saved(
    make_scheduler, make_executor, make_request, length, pace_s, is_spent
):
    """A prompt beside a first token gets a larger step if the lengths are known."""
    scheduler = make_scheduler(max_batch_tokens=4096, num_blocks=4096)
    known = {f"r{index}": length for index in range(20)}
    executor = make_executor(scheduler, {**known, "young": 900})
    for name in known:
        executor.add(make_request(name, executor.now))
        executor.drain()
    executor.add(make_request("young", executor.now, new=900))
    executor.step()
    executor.add(make_request("long", executor.now, 4000, slo=Slo(9.0, 0.1)))
    scheduler.averages.pace_s = pace_s
    batch = scheduler.schedule(executor.now)
    assert batch.kind is BatchKind.MIXED
    assert (batch.predicted_s > 0.09) is is_spent


@pytest.mark.parametrize(
    ("num_at_once", "told"),
    [
        (1, {"decoded": 1}),
        (1, {"emitted": {"r": 1}}),
        (4, {"decoded": 4}),
        (12, {"decoded": 12}),
    ],
)
def test_decode_pace_follows_recent_steps(make_scheduler, make_request, num_at_once, told):
    """The number of steps reported at once does not matter."""
    scheduler = make_scheduler(num_blocks=4096)
    scheduler.add_request(make_request("r", new=900), 0.0)
    prefill = scheduler.schedule(0.0)
    scheduler.update(prefill, BatchResult(0.1, {"r": 100}, {"r": 1}), 0.1)
    for num_steps, step_s in ((600, 0.05), (12, 0.25)):
        for _ in range(num_steps // num_at_once):
            batch = replace(scheduler.schedule(0.1), predicted_s=step_s)
            scheduler.update(batch, BatchResult(step_s, **told), 0.1)
    before_s = 0.05 * (1 - 1.01**-600)
    assert scheduler.averages.pace_s == pytest.approx(
        before_s + (0.25 - before_s) * (1 - 1.05**-12)
    )
