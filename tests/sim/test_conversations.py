"""Simulated conversations: a turn waits for the response before it, and finds it in the cache."""

from dataclasses import replace
from itertools import pairwise

import pytest
from support.experiment import EXPERIMENT

from macroserve.core.hybrid_cache import keeping_hidden
from macroserve.core.request import Slo
from macroserve.core.strategies import STRATEGIES
from macroserve.sim.instance import InstanceSpec
from macroserve.sim.result_collector import ResultCollector
from macroserve.sim.results import AT_END, RunResult
from macroserve.sim.rival_routing import Routing
from macroserve.sim.scenario import Scenario
from macroserve.sim.simulation import single_cell
from macroserve.workload.arrivals import Arrival, Turn
from macroserve.workload.lengths import Uniform
from macroserve.workload.load import LoadLimits, SyntheticLoad, plan
from macroserve.workload.multi_turn import MultiTurn

CLUSTER = EXPERIMENT.scenario.cluster
UNIFIED = keeping_hidden(STRATEGIES["unified"], on=False)
SCENARIO = Scenario(CLUSTER, UNIFIED, EXPERIMENT.scenario.slo)
TURNS = (Turn(2.0, 320, 64), Turn(0.0, 160, 32))
CHAT = Arrival(1.0, 640, 128, block_ids=(0,), is_open=True, turns=TURNS)


def served(arrivals: list[Arrival], scenario: Scenario = SCENARIO, **given: int) -> RunResult:
    return scenario.serve(arrivals, stop=AT_END, seed=1, **given)


def chats(rate: float, duration_s: float, seed: int = 0) -> list[Arrival]:
    load = SyntheticLoad(
        rate, 1.0, Uniform(100, 400), Uniform(20, 100), multi_turn=MultiTurn(4, 2.0)
    )
    return list(plan(load, LoadLimits(duration_s), seed))


def test_turn_comes_its_think_time_after_the_response_before_it_has_ended() -> None:
    first, second, third = served([CHAT]).results
    assert [r.num_prompt_tokens for r in (first, second, third)] == [640, 1088, 1312]
    ends_s = [result.arrival_s + result.completion_s for result in (first, second, third)]
    assert first.arrival_s == 1.0
    assert second.arrival_s == pytest.approx(ends_s[0] + 2.0)
    assert third.arrival_s == pytest.approx(ends_s[1])


def test_turn_finds_the_prompt_and_the_response_before_it_in_the_cache() -> None:
    alone = replace(CLUSTER, num_instances=1)
    found = served([CHAT], replace(SCENARIO, cluster=alone)).prefix_cache_hit_ratio
    # Blocks of 16 tokens. Keys and values of a response's last token were never computed.
    assert found == pytest.approx((752 + 1136) / (640 + 1088 + 1312))


def test_turns_of_two_conversations_share_nothing() -> None:
    alone = replace(CLUSTER, num_instances=1)
    both = [CHAT, CHAT._replace(block_ids=(1,))]
    once, twice = (served(load, replace(SCENARIO, cluster=alone)) for load in ([CHAT], both))
    assert twice.prefix_cache_hit_ratio == pytest.approx(once.prefix_cache_hit_ratio)


def test_conversation_ends_before_the_turn_that_passes_the_models_length() -> None:
    cluster = replace(CLUSTER, max_model_len=1152)
    outcome = served([CHAT], replace(SCENARIO, cluster=cluster))
    assert [result.num_prompt_tokens for result in outcome.results] == [640, 1088]
    assert (outcome.requests, outcome.num_unsent) == (2, 0)


@pytest.mark.parametrize("num_before", [0, 2])
def test_turns_after_a_refused_request_are_not_sent_and_counted(num_before: int) -> None:
    hopeless = Scenario(CLUSTER, UNIFIED, Slo(1e-6, 0.1), drop_late=True)
    # All but the first wait, and are late as they do.
    load = [CHAT._replace(block_ids=(i,)) for i in range(5)]
    outcome = served(load, hopeless, num_before=num_before)
    num_counted = 5 - num_before
    num_refused = sum(result.refused for result in outcome.results)
    assert outcome.decided and num_refused > 0
    assert len(outcome.results) + outcome.num_unsent == 3 * num_counted
    assert num_refused <= outcome.num_unsent <= 2 * num_refused


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_turns_of_all_conversations_end_under_each_strategy(strategy: str) -> None:
    load = chats(rate=2.0, duration_s=20.0)
    outcome = served(load, replace(SCENARIO, strategy=STRATEGIES[strategy]))
    assert outcome.decided and outcome.requests == 4 * len(load) == len(outcome.results)
    assert served(load, replace(SCENARIO, strategy=STRATEGIES[strategy])) == outcome


def test_conversations_in_a_tight_memory_end(make_config, make_latency) -> None:
    config = make_config(num_blocks=80, max_late_wait_s=1e6)
    spec = replace(InstanceSpec.known(config, make_latency()), shares_prefixes=True)
    load = chats(rate=3.0, duration_s=20.0)
    outcome = single_cell(spec, 1).serve(load, stop=AT_END)
    assert outcome.decided and len(outcome.results) == 4 * len(load)
    assert 0 < outcome.prefix_cache_hit_ratio < 0.7


def test_first_conversations_that_only_warm_up_do_not_count() -> None:
    load = chats(rate=2.0, duration_s=20.0)
    outcome = served(load, num_before=5)
    assert outcome.requests == 4 * (len(load) - 5)


def test_own_routing_finds_more_of_a_conversation_than_round_robin() -> None:
    load = chats(rate=6.0, duration_s=30.0)
    cluster = replace(CLUSTER, num_instances=4)
    ratios = [
        served(load, replace(SCENARIO, cluster=cluster, routing=routing)).prefix_cache_hit_ratio
        for routing in (Routing.ROUND_ROBIN, Routing.OWN)
    ]
    assert ratios[0] < 0.5 < 0.6 < ratios[1]


def test_requests_arrive_in_order_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order in which results are expected is that of their deadlines."""
    arrived_s: list[float] = []
    expect = ResultCollector.expect

    def expecting(self, record):
        arrived_s.append(record.request.arrival_s)
        expect(self, record)

    monkeypatch.setattr(ResultCollector, "expect", expecting)
    served(chats(rate=4.0, duration_s=20.0))
    assert all(one <= two for one, two in pairwise(arrived_s))
    assert len(arrived_s) > 200
