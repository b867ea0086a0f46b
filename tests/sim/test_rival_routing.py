"""The rules of other routers choose according to their names, and every request is answered."""

from collections import Counter
from dataclasses import replace

import pytest
from support.experiment import EXPERIMENT

from macroserve.core.request import Request, Slo
from macroserve.core.routing.decision import RouteRequest
from macroserve.core.strategies import STRATEGIES
from macroserve.sim.results import AT_END
from macroserve.sim.rival_routing import LOAD_FACTOR, RivalRouter, Routing
from macroserve.sim.router import cell_instances
from macroserve.sim.scenario import Scenario
from macroserve.workload.arrivals import Arrival

CLUSTER = replace(EXPERIMENT.scenario.cluster, num_instances=4)
SLO = Slo(1.0, 0.1)
SPEC = CLUSTER.instance_spec(STRATEGIES["vllm"], SLO)
RIVALS = [routing for routing in Routing if routing is not Routing.OWN]


def router(routing: Routing) -> RivalRouter:
    return RivalRouter(cell_instances(SPEC, 4, 0.0), routing)


def request(index: int, prefix: tuple[int, ...] = (), prompt: int = 512) -> RouteRequest:
    return RouteRequest(Request(f"r{index}", 0.0, prompt, 64, SLO), 64, prefix=prefix)


def chosen(routing: Routing, *prefixes: tuple[int, ...], prompt: int = 512) -> list[str | None]:
    """Return where requests go that come at once, each with one of the prefixes."""
    rival = router(routing)
    return [
        rival.assign(request(index, prefix, prompt), 0.0) for index, prefix in enumerate(prefixes)
    ]


def test_round_robin_takes_turns() -> None:
    places = chosen(Routing.ROUND_ROBIN, *[(1,)] * 8)
    assert places[:4] == places[4:] and len(set(places)) == 4


def test_least_load_spreads_equal_prompts() -> None:
    assert set(Counter(chosen(Routing.LEAST_LOAD, *[(1,)] * 8)).values()) == {2}


def test_session_affinity_keeps_equal_prompts_together_and_spreads_others() -> None:
    assert len(set(chosen(Routing.SESSION, *[(1, 2)] * 8))) == 1
    assert len(set(chosen(Routing.SESSION, *[(1, number) for number in range(32)]))) == 4


def test_bounded_hash_keeps_beginnings_together_up_to_its_bound() -> None:
    places = chosen(Routing.BOUNDED_HASH, *[(1, number) for number in range(32)])
    most = max(Counter(places).values())
    assert len(set(places)) == 4
    assert 32 / 4 < most <= LOAD_FACTOR * 32 / 4 + 1
    apart = chosen(Routing.BOUNDED_HASH, *[(number, 1) for number in range(4)])
    assert apart == chosen(Routing.BOUNDED_HASH, *[(number, 2) for number in range(4)])


def test_sticky_stays_with_the_prompt_until_it_would_wait_too_long() -> None:
    assert len(set(chosen(Routing.STICKY, *[(1, 2)] * 3))) == 1
    # 8,000 tokens take seconds each where 128 of them are cached.
    assert len(set(chosen(Routing.STICKY, *[(1, 2)] * 64, prompt=8000))) > 1
    assert len(set(chosen(Routing.STICKY, *[()] * 4))) == 4


@pytest.mark.parametrize("routing", RIVALS)
def test_instance_that_a_request_excludes_is_not_chosen(routing: Routing) -> None:
    rival = router(routing)
    all_but_one = frozenset(f"instance-{number}" for number in range(3))
    asked = replace(request(0, (1, 2)), exclude=all_but_one)
    assert rival.assign(asked, 0.0) == "instance-3"
    assert rival.assign(replace(asked, exclude=all_but_one | {"instance-3"}), 0.0) is None


@pytest.mark.parametrize("routing", Routing)
def test_every_request_is_answered_and_seeds_repeat(routing: Routing) -> None:
    load = [
        Arrival(index / 20, 1500, 20, block_ids=(index % 5, 100 + index), block_tokens=1000)
        for index in range(100)
    ]
    scenario = Scenario(CLUSTER, STRATEGIES["vllm"], SLO, routing=routing)
    result = scenario.serve(load, stop=AT_END)
    assert len(result.results) == 100 and not any(each.refused for each in result.results)
    assert result == scenario.serve(load, stop=AT_END)
