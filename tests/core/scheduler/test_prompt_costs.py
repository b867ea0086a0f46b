"""The costs of waiting prompts follow their cached prefixes."""

from collections import Counter

import pytest

from macroserve.core.scheduler.blocks import Hit
from macroserve.core.scheduler.estimators import Averages
from macroserve.core.scheduler.prompt_costs import LOOK_UPS, PromptCosts
from macroserve.core.scheduler.waiting import WaitingQueue
from macroserve.core.strategies import STRATEGIES


class FixedCache:
    """The cache has as many tokens of each prompt as it is told."""

    def __init__(self, num_tokens: int = 0) -> None:
        self.num_tokens = num_tokens
        self.asked: Counter[str] = Counter()

    def find(self, request_id):
        return Hit(self.num_tokens)

    def num_cached(self, request_id, last_found):
        self.asked[request_id] += 1
        return self.num_tokens


@pytest.fixture
def latency(make_latency):
    return make_latency()


@pytest.fixture
def make_costs(latency):
    return lambda cache: PromptCosts(latency, 512, Averages(), cache)


@pytest.fixture
def waiting():
    return WaitingQueue(STRATEGIES["unified"].ordering)


@pytest.mark.parametrize("num_cached", [0, 640, 980])
def test_prompt_costs_the_prefill_of_its_uncached_tokens(
    make_costs, make_sequence, latency, num_cached
):
    seq = make_sequence(prompt=1000)
    make_costs(FixedCache(num_cached)).arrive(seq)
    assert seq.prefill_s == latency.batched_prefill_s(1000 - num_cached, 512, num_cached)
    assert seq.service_s == seq.prefill_s / Averages().prefill_share


def test_waiting_prompts_cost_less_once_the_cache_has_more_of_them(
    make_costs, make_sequence, waiting, latency
):
    cache = FixedCache()
    costs = make_costs(cache)
    for number in range(LOOK_UPS + 4):
        seq = make_sequence(f"{number}", number, prompt=1000)
        costs.arrive(seq)
        waiting.add(seq)
    before_s = waiting.prefill_s
    cache.num_tokens = 640
    costs.renew(waiting)
    assert cache.asked.total() == LOOK_UPS, "no more in one iteration"
    for _ in range(2):  # those that cost less now go behind the others
        costs.renew(waiting)
    assert len(cache.asked) == LOOK_UPS + 4, "each in its turn"
    less_s = latency.batched_prefill_s(1000, 512) - latency.batched_prefill_s(360, 512, 640)
    assert waiting.prefill_s == pytest.approx(before_s - (LOOK_UPS + 4) * less_s)


def test_preempted_prompt_costs_its_whole_prefill_again(make_costs, make_sequence, latency):
    costs, seq = make_costs(FixedCache(640)), make_sequence(prompt=1000)
    costs.arrive(seq)
    service_s = seq.service_s
    seq.count_cached(0)
    costs.come_back(seq)
    assert seq.prefill_s == latency.batched_prefill_s(1000, 512)
    assert seq.service_s == service_s, "the others keep what they lose by it"
