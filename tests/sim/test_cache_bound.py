"""A cache of all instances' size has the same hits as a block pool of that size."""

from dataclasses import replace
from random import Random

import pytest
from support.experiment import EXPERIMENT

from macroserve.core.block_pool import BlockPool
from macroserve.core.request import Request, Slo
from macroserve.core.strategies import STRATEGIES
from macroserve.sim.cache_bound import CacheBound
from macroserve.sim.device import SimRequest
from macroserve.sim.instance import SimulatedInstance
from macroserve.sim.prefixes import block_hashes
from macroserve.sim.results import AT_END, WHEN_DECIDED, RunResult, StopRule
from macroserve.sim.rival_routing import Routing
from macroserve.sim.scenario import Scenario
from macroserve.workload.arrivals import Arrival, Turn

BLOCK = 16
CLUSTER = replace(EXPERIMENT.scenario.cluster, num_instances=3)
SCENARIO = Scenario(CLUSTER, STRATEGIES["vllm"], Slo(1.0, 0.1))


def request(num_tokens: int, *block_ids: int, block_tokens: int = 64) -> SimRequest:
    known = Request("request", 0.0, num_tokens, 8, Slo(1.0, 0.1))
    return SimRequest(known, 8, block_ids, block_tokens)


def turn(num_tokens: int, num_output: int, chat: int) -> SimRequest:
    known = Request("request", 0.0, num_tokens, num_output, Slo(1.0, 0.1))
    return SimRequest(known, num_output, (chat,), is_open=True)


def num_found(cache: CacheBound, *requests: SimRequest) -> int:
    """Return the tokens that the cache has of the requests, which it has not taken before."""
    for each in requests:
        cache.take(each)
    return round(cache.hit_ratio * sum(each.request.num_prompt_tokens for each in requests))


def served(
    arrivals: list[Arrival], scenario: Scenario = SCENARIO, stop: StopRule = AT_END
) -> RunResult:
    return scenario.serve(arrivals, stop=stop)


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (request(128, 1, 2), 112),
        (request(129, 1, 2, 3), 128),
        (request(200, 1, 9, 2, 3), 64),
        (request(100, 1, 2), 96),
        (request(200, 9, 2), 0),
        (request(200), 0),
    ],
)
def test_prompt_finds_full_blocks_of_the_same_ids_but_its_last_token(
    second: SimRequest, expected: int
) -> None:
    assert num_found(CacheBound(100, BLOCK), request(128, 1, 2), second) == expected


def test_cache_without_requests_has_found_nothing() -> None:
    assert CacheBound(100, BLOCK).hit_ratio == 0.0


def test_turn_finds_the_response_before_it_without_its_last_token() -> None:
    assert num_found(CacheBound(100, BLOCK), turn(64, 65, 0), turn(200, 9, 0)) == 128
    assert num_found(CacheBound(100, BLOCK), turn(64, 64, 0), turn(200, 9, 0)) == 112


def test_full_cache_drops_the_least_recently_used_and_the_end_of_a_prompt_first() -> None:
    old, new = request(128, 1, 2), request(128, 3, 4)
    assert num_found(CacheBound(13, BLOCK), old, new, request(200, 1, 2)) == 5 * BLOCK
    # The new one's blocks go where the old one is used again.
    again = (old, new, request(128, 1, 2), request(48, 5), request(200, 3, 4))
    assert num_found(CacheBound(13, BLOCK), *again) == 5 * BLOCK + 2 * BLOCK


@pytest.mark.parametrize("num_blocks", [60, 150, 400, 10_000])
@pytest.mark.parametrize("block_tokens", [64, 24, 10])
def test_cache_finds_as_much_as_a_block_pool(num_blocks: int, block_tokens: int) -> None:
    random = Random(num_blocks)
    pool, cache = BlockPool(num_blocks, BLOCK), CacheBound(num_blocks, BLOCK)
    num_tokens = num_cached = 0
    for _ in range(400):
        group, own = random.randrange(12), random.randrange(100, 160)
        ids = (group, 1000 + group, *[own] * random.randrange(1, 6))
        # Full blocks alone: a pool also gives room to the last one of a prompt.
        num = len(ids) * block_tokens // BLOCK * BLOCK
        cache.take(request(num, *ids, block_tokens=block_tokens))
        pool.add("request", num, block_hashes(num, ids, block_tokens, BLOCK))
        num_cached += pool.find("request").num_tokens
        num_tokens += num
        pool.compute("request", num)
        pool.remove("request")
    assert 0 < num_cached < num_tokens
    assert cache.hit_ratio == pytest.approx(num_cached / num_tokens, rel=0.03)


def test_one_cache_finds_what_a_single_instance_does() -> None:
    arrivals = [
        Arrival(3.0 * at, 640, 100, block_ids=(at % 3,), is_open=True, turns=(Turn(1.0, 320, 64),))
        for at in range(6)
    ]
    alone = replace(SCENARIO, cluster=replace(CLUSTER, num_instances=1))
    outcome = served(arrivals, alone)
    assert outcome.one_cache_hit_ratio == pytest.approx(outcome.prefix_cache_hit_ratio)
    assert outcome.prefix_cache_hit_ratio > 0.5


def test_one_cache_finds_more_than_caches_among_which_prompts_go_round() -> None:
    arrivals = [Arrival(float(at), 600, 20, block_ids=(at % 5, at % 5)) for at in range(30)]
    spread = served(arrivals, replace(SCENARIO, routing=Routing.ROUND_ROBIN))
    # 25 of 30 prompts have come before; each instance meets each of 5 anew.
    assert spread.one_cache_hit_ratio == pytest.approx(25 / 30 * 592 / 600)
    assert spread.prefix_cache_hit_ratio == pytest.approx(15 / 30 * 592 / 600)


def test_one_cache_is_as_large_as_all_instances_caches() -> None:
    bytes_each = 40 * BLOCK * CLUSTER.shape.kv_bytes_per_token
    arrivals = [Arrival(float(at), 480, 20, block_ids=(at % 4,)) for at in range(40)]
    ratios = [
        served(
            arrivals,
            replace(
                SCENARIO,
                cluster=replace(CLUSTER, num_instances=number, kv_bytes=bytes_each),
            ),
        ).one_cache_hit_ratio
        for number in (2, 3)
    ]
    # Four prompts of 30 blocks go round: 120 blocks hold all of them, 80 lose them in turn.
    assert ratios == [pytest.approx(0.0, abs=0.1), pytest.approx(36 / 40 * 464 / 480)]


def test_prompt_that_the_endpoint_refuses_does_not_count() -> None:
    arrivals = [Arrival(float(at), 600, 20, block_ids=(7, 7)) for at in range(4)]
    too_long = Arrival(4.0, CLUSTER.max_model_len, 1, block_ids=(7,) * 20)
    for load in (arrivals, [*arrivals, too_long]):
        assert served(load).one_cache_hit_ratio == pytest.approx(3 / 4 * 592 / 600)


def test_request_that_is_handed_back_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[str] = []
    add = SimulatedInstance.add

    def adding(self, record, now):
        placed.append(record.request.request_id)
        return add(self, record, now)

    monkeypatch.setattr(SimulatedInstance, "add", adding)
    ascendra = replace(SCENARIO, strategy=STRATEGIES["ascendra"], high_priority_ratio=0.5)
    # Only the first of the prompts that begin alike finds nothing, however often one is placed.
    arrivals = [Arrival(at / 50, 2000, 20, block_ids=(at % 60,) * 4) for at in range(120)]
    outcome = served(arrivals, ascendra)
    assert len(placed) > 120
    assert outcome.one_cache_hit_ratio == pytest.approx(0.5 * 1984 / 2000)


def test_no_share_where_the_load_tells_no_beginnings_or_the_run_ends_early() -> None:
    plain = [Arrival(float(at), 600, 20) for at in range(4)]
    shared = [each._replace(block_ids=(1, 2)) for each in plain]
    assert served(plain).one_cache_hit_ratio is None
    assert served(shared, stop=WHEN_DECIDED).one_cache_hit_ratio is None
