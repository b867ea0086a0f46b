"""The simulator compared to its schedulers, and to the emulated executor."""

from collections import defaultdict, deque
from random import Random

import pytest
from support.iterated import QueueReader
from support.token_requests import token_request

from macroserve.core.batch import BatchKind, HandBackReason
from macroserve.core.request import Request, Slo
from macroserve.core.routing.ledger import CellLedger
from macroserve.core.routing.policies import least_load_route
from macroserve.core.scheduler.estimators import LengthPredictor
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.core.strategies import STRATEGIES
from macroserve.engine.emulated_executor import EmulatedExecutor
from macroserve.sim import instance
from macroserve.sim.instance import InstanceSpec, SimulatedInstance
from macroserve.sim.result_collector import ResultCollector
from macroserve.sim.results import AT_END, StopRule
from macroserve.sim.simulation import single_cell
from macroserve.workload.arrivals import Arrival, poisson

LATE = Arrival(1000.0, 10, 10)
"""Until this one is decided, all others have ended, whether they were late or not."""


def log_batches(policy, log):
    """Log every decision of a scheduler with its time."""
    schedule = policy.schedule

    def recording(now):
        batch = schedule(now)
        if batch.kind is not BatchKind.IDLE:
            log.append((now, batch))
        return batch

    policy.schedule = recording


async def emulated_batches(config, latency, arrivals):
    """The same requests on one instance under the emulated executor, with a manual clock."""
    log, now, to_come = [], 0.0, deque(enumerate(arrivals))
    policy = InstanceScheduler(config, latency)
    policy.let_offload(False)
    log_batches(policy, log)

    async def sleep(seconds):
        nonlocal now
        end_s = now + seconds
        while to_come and to_come[0][1].at_s <= end_s:
            arrive()
        now = end_s

    executor = EmulatedExecutor(latency, lambda: now, sleep)

    def arrive():
        index, arrival = to_come.popleft()
        request_id, num_prompt = f"request-{index}", arrival.num_prompt_tokens
        longest = config.max_model_len - num_prompt
        prompt = [1] * num_prompt
        executor.add(token_request(request_id, prompt, arrival.num_output_tokens), QueueReader())
        request = Request(request_id, arrival.at_s, num_prompt, longest, config.slo)
        assert policy.add_request(request, arrival.at_s) is None

    while to_come or executor.streams:
        if not executor.streams:
            now = to_come[0][1].at_s
            arrive()
        batch = policy.schedule(now)
        result = await executor.run(batch)
        policy.update(batch, result, now)
        handed_back = [each.request_id for each in batch.handed_back]
        for request_id in (*result.finished, *handed_back):
            del executor.streams[request_id]
    return log


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_simulation_decides_as_the_emulated_executor_does(
    strategy, make_config, make_latency, make_lengths, monkeypatch
):
    monkeypatch.setattr(instance, "MAX_RUN_STEPS", 1)
    config = make_config(strategy, num_blocks=128)  # tight, so that some are preempted
    arrivals = poisson([0.5, 6.0], 20.0, make_lengths(), Random(4))
    cell = single_cell(InstanceSpec.known(config, make_latency()), 1)
    log = []
    log_batches(cell.router.instances["instance-0"].policy, log)
    outcome = cell.serve(arrivals)
    assert outcome.decided and outcome.requests == len(arrivals)
    expected = await emulated_batches(config, make_latency(), arrivals)
    # The simulator need not wait for the last token of those that are late.
    assert log == expected[: len(log)]
    assert len(log) > 500


def test_requests_that_end_in_one_step_are_learned_from_in_order_of_arrival(
    make_config, make_latency, monkeypatch
):
    """The order of the ids' hashes would give other figures for the same seed in another
    process."""
    learned = defaultdict(list)
    observe = LengthPredictor.observe

    def observing(self, request, num_emitted):
        learned[self].append(request.num_prompt_tokens)
        observe(self, request, num_emitted)

    monkeypatch.setattr(LengthPredictor, "observe", observing)
    prompts = list(range(10, 110, 10))
    cell = single_cell(InstanceSpec.known(make_config(), make_latency()), 1)
    cell.serve([Arrival(0.0, prompt, 50) for prompt in prompts], stop=AT_END)
    assert list(learned.values()) == [prompts] * len(learned) != []


@pytest.fixture
def ends(monkeypatch):
    """Record the times of each request's first and last token and its number of tokens, by id, in
    the order of their ends."""
    times = {}
    ended = ResultCollector.ended

    def recording(self, record):
        assert record.request.request_id not in times, "it ended twice"
        assert record.num_emitted == record.num_output
        tokens = record.first_s, record.last_s, record.num_emitted
        times[record.request.request_id] = tokens
        ended(self, record)

    monkeypatch.setattr(ResultCollector, "ended", recording)
    return times


@pytest.mark.simulation
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("num_instances", "rate", "num_blocks", "hidden_states_per_block"),
    [(1, 2, 1024, None), (4, 16, 128, None), (1, 2, 96, 64)],
)
def test_simulation_with_several_steps_per_event_changes_no_token(
    strategy,
    num_instances,
    rate,
    num_blocks,
    hidden_states_per_block,
    make_config,
    make_latency,
    make_lengths,
    ends,
    monkeypatch,
):
    arrivals = [*poisson([rate], 30.0, make_lengths(), Random(5)), LATE]
    config = make_config(
        strategy,
        num_blocks=num_blocks,
        hidden_states_per_block=hidden_states_per_block,
        max_late_wait_s=1e6,  # all are served
    )

    def serve(max_run_steps):
        monkeypatch.setattr(instance, "MAX_RUN_STEPS", max_run_steps)
        ends.clear()
        cell = single_cell(
            InstanceSpec.known(config, make_latency()),
            num_instances,
            1 / 3,
        )
        outcome = cell.serve(arrivals)
        return outcome, dict(ends), cell.num_iterations

    outcome, exact_ends, num_steps = serve(1)
    assert len(exact_ends) == outcome.requests == len(arrivals)
    merged_outcome, merged_ends, num_events = serve(32)
    assert num_events < num_steps
    if num_instances > 1 and STRATEGIES[strategy].route is least_load_route:
        # It reads how long responses are guessed to be, and guesses are renewed less often.
        assert merged_outcome.attainment == pytest.approx(outcome.attainment, abs=0.05)
    else:
        assert merged_outcome == outcome
        assert list(merged_ends) == list(exact_ends)
        assert list(merged_ends.values()) == [pytest.approx(end) for end in exact_ends.values()]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_simulation_that_ended_holds_no_cache(strategy, make_config, make_latency, make_lengths):
    """Short memory makes some requests pause, and some paused requests lose their caches."""
    config = make_config(strategy, num_blocks=64)
    cell = single_cell(InstanceSpec.known(config, make_latency()), 1)
    arrivals = poisson([6.0], 20.0, make_lengths(), Random(5))
    outcome = cell.serve(arrivals, stop=AT_END)
    assert len(outcome.results) == len(arrivals) and outcome.kv_use > 0.3
    assert cell.router.instances["instance-0"].kv_use == 0.0


def test_simulation_with_equal_seeds_gives_equal_results(
    make_config, make_latency, make_lengths, ends
):
    arrivals = poisson([20.0], 10.0, make_lengths(), Random(6))
    runs = []
    for _ in range(2):
        ends.clear()
        single_cell(InstanceSpec.known(make_config(), make_latency()), 3, 1 / 3).serve(arrivals)
        runs.append(list(ends.items()))
    assert runs[0] == runs[1]


def test_lone_request_takes_the_time_of_its_batches(make_config, make_latency, ends):
    latency = make_latency()
    single_cell(InstanceSpec.known(make_config(), latency), 1).serve([Arrival(3.0, 500, 4)])
    prefill_s = latency.prefill_s(500)
    decodes_s = [latency.predict(latency.work((), 1, 501 + done)) for done in range(3)]
    first_s, last_s, _ = ends["request-0"]
    assert first_s == pytest.approx(3.0 + prefill_s)
    assert last_s == pytest.approx(3.0 + prefill_s + sum(decodes_s))


def test_urgent_requests_are_offloaded_to_the_high_priority_pool(
    make_config, make_latency, make_lengths, ends, monkeypatch
):
    offloaded, moved = set(), []
    begin, add = SimulatedInstance.begin, SimulatedInstance.add

    def beginning(self, now):
        left = begin(self, now)
        for record, reason in left:
            assert reason is HandBackReason.OFFLOAD
            assert self.name != "instance-0", "the only HP instance"
            offloaded.add(record)
        return left

    def adding(self, record, now):
        if record in offloaded:
            moved.append(self.name)
        return add(self, record, now)

    monkeypatch.setattr(SimulatedInstance, "begin", beginning)
    monkeypatch.setattr(SimulatedInstance, "add", adding)
    arrivals = [*poisson([20.0], 20.0, make_lengths(), Random(7)), LATE]
    outcome = single_cell(
        InstanceSpec.known(make_config("ascendra"), make_latency()), 3, 1 / 3
    ).serve(arrivals)
    assert set(moved) == {"instance-0"} and len(moved) == len(offloaded) > 5
    assert len(ends) == outcome.requests == len(arrivals), "none is lost on its way"


def test_router_gets_the_status_of_instances_and_the_response_lengths(
    make_config, make_latency, monkeypatch
):
    routed = []
    assign = CellLedger.assign

    def recording(self, request, now):
        routed.append((request.num_output_tokens, *(view.status for view in self.views)))
        return assign(self, request, now)

    monkeypatch.setattr(CellLedger, "assign", recording)
    arrivals = [Arrival(0.0, 200, 40), Arrival(0.5, 300, 2000), Arrival(100.0, 10, 10)]
    single_cell(InstanceSpec.known(make_config(), make_latency()), 1).serve(arrivals)
    guess, before = routed[0]
    assert (guess, before.num_running, before.num_waiting) == (256, 0, 0)
    guess, meanwhile = routed[1]
    assert (meanwhile.num_decoding, meanwhile.waiting_tokens) == (1, 0)
    assert meanwhile.remaining_tokens < 256
    guess, after = routed[2]
    assert guess > 256, "of the responses that ended the longer one"
    assert (after.num_running, after.finished) == (0, 2)


def test_request_that_is_dropped_or_refused_misses_its_targets(
    make_config, make_latency, make_lengths
):
    arrivals = poisson([60.0], 10.0, make_lengths(), Random(8))
    config = make_config(drop_late=True)
    outcome = single_cell(InstanceSpec.known(config, make_latency()), 1).serve(arrivals)
    assert outcome.decided and outcome.requests == len(arrivals)
    assert 0 < outcome.attained < len(arrivals)
    never_fits = make_config(num_blocks=4)
    outcome = single_cell(InstanceSpec.known(never_fits, make_latency()), 1).serve(arrivals)
    assert (outcome.requests, outcome.attained) == (len(arrivals), 0)


def test_cell_with_a_prompt_as_long_as_the_model_refuses_it(make_config, make_latency, ends):
    config = make_config(max_model_len=128)
    arrivals = [Arrival(0.0, 500, 10), Arrival(1.0, 128, 10), Arrival(2.0, 127, 10)]
    outcome = single_cell(InstanceSpec.known(config, make_latency()), 1).serve(
        arrivals, stop=AT_END
    )
    assert [v.refused for v in outcome.results] == [True, True, False]
    assert [v.num_prompt_tokens for v in outcome.results] == [500, 128, 127]
    assert outcome.attained <= 1
    assert [num_tokens for _, _, num_tokens in ends.values()] == [1]


def test_cell_with_a_response_beyond_the_model_ends_it_there(make_config, make_latency, ends):
    config = make_config(max_model_len=128)
    outcome = single_cell(InstanceSpec.known(config, make_latency()), 1).serve(
        [Arrival(0.0, 100, 5000)]
    )
    assert outcome.requests == 1
    assert [num_tokens for _, _, num_tokens in ends.values()] == [28]


def test_request_that_misses_one_target_does_not_attain(make_config, make_latency):
    for slo in (Slo(ttft_s=1e-4, tpot_s=1.0), Slo(ttft_s=10.0, tpot_s=1e-4)):
        cell = single_cell(InstanceSpec.known(make_config(slo=slo), make_latency()), 1)
        assert cell.serve([Arrival(0.0, 100, 10), Arrival(1.0, 100, 10)]).attained == 0
    cell = single_cell(InstanceSpec.known(make_config(slo=Slo(10.0, 1.0)), make_latency()), 1)
    assert cell.serve([Arrival(0.0, 100, 10), Arrival(1.0, 100, 10)]).attained == 2


def test_arrivals_of_the_warm_up_do_not_count(make_config, make_latency, make_lengths):
    arrivals = poisson([5.0], 10.0, make_lengths(), Random(9))
    outcome = single_cell(InstanceSpec.known(make_config(), make_latency()), 1).serve(
        arrivals, num_before=20
    )
    assert outcome.requests == len(arrivals) - 20


def test_simulation_without_arrivals_attains_all(make_config, make_latency):
    outcome = single_cell(InstanceSpec.known(make_config(), make_latency()), 2).serve([])
    assert (outcome.requests, outcome.decided, outcome.attainment) == (0, True, 1.0)


def test_simulation_with_a_goal_out_of_reach_stops_early(make_config, make_latency, make_lengths):
    arrivals = poisson([60.0], 20.0, make_lengths(), Random(10))
    whole = single_cell(InstanceSpec.known(make_config(), make_latency()), 1)
    assert whole.serve(arrivals).attainment < 0.5
    early = single_cell(InstanceSpec.known(make_config(), make_latency()), 1)
    outcome = early.serve(arrivals, stop=StopRule(goal=0.9))
    assert outcome.attainment < 0.9 and outcome.decided and outcome.requests < len(arrivals)
    assert early.num_iterations < 0.5 * whole.num_iterations
    in_reach = single_cell(InstanceSpec.known(make_config(), make_latency()), 1)
    assert in_reach.serve(arrivals[::60], stop=StopRule(goal=0.9)).decided


def test_simulation_stops_at_its_bound_of_iterations(make_config, make_latency, make_lengths):
    arrivals = poisson([20.0], 60.0, make_lengths(), Random(11))
    cell = single_cell(InstanceSpec.known(make_config(), make_latency()), 2)
    outcome = cell.serve(arrivals, max_iterations=300)
    assert cell.num_iterations <= 302
    assert not outcome.decided and outcome.requests < len(arrivals)


def test_kv_use_is_the_share_of_cache_tokens_at_each_arrival(make_config, make_latency):
    config = make_config("vllm")
    cell = single_cell(InstanceSpec.known(config, make_latency()), 2)
    arrivals = [Arrival(0.0, 1000, 200), Arrival(60.0, 10, 10)]
    after = single_cell(InstanceSpec.known(config, make_latency()), 2)
    assert after.serve(arrivals, num_before=1, stop=AT_END).kv_use == 0.0  # it has ended
    arrivals[1] = Arrival(2.0, 10, 10)
    use = cell.serve(arrivals, num_before=1, stop=AT_END).kv_use
    one_of_two = config.num_blocks * config.block_size * 2
    assert 1000 / one_of_two < use < 1200 / one_of_two
