"""A real engine compared to the simulator, which uses its profile."""

import pytest
from support.profiled import PROFILE, SETTINGS

from macroserve_lab.bench import strategies
from macroserve_lab.bench.strategies import Trial, loads_of, orders_kept, predicted


@pytest.fixture
def settings():
    return SETTINGS


def test_loads_are_shares_of_what_vllm_can_serve(settings):
    loads = loads_of(PROFILE, settings, "ShareGPT")
    assert list(loads) == [f"sharegpt.{load:g}" for load in strategies.LOADS]
    nums = [len(arrivals) for arrivals in loads.values()]
    for num, load in zip(nums, strategies.LOADS, strict=True):
        assert num / nums[0] == pytest.approx(load / strategies.LOADS[0], rel=0.15)
    for each in [arrival for arrivals in loads.values() for arrival in arrivals]:
        assert each.max_new_tokens == each.num_output_tokens
        assert each.num_prompt_tokens + each.num_output_tokens < settings.max_model_len
    shares = [predicted(PROFILE, settings, arrivals) for arrivals in loads.values()]
    assert shares[0] >= strategies.LEVEL > shares[-1]


@pytest.mark.parametrize(
    ("shares", "kept"),
    [
        ([(0.9, 0.95), (0.5, 0.4)], [True]),
        ([(0.9, 0.4), (0.5, 0.6)], [False]),
        ([(0.9, 0.7), (0.5, 0.7)], [True]),
        ([(0.9, 0.1), (0.88, 0.9)], []),
    ],
    ids=["kept", "turned", "not told apart", "too close to tell"],
)
def test_orders_count_where_the_engine_tells_strategies_apart(shares, kept):
    trials = [Trial("load", f"strategy {i}", *each) for i, each in enumerate(shares)]
    assert orders_kept([*trials, Trial("another load", "strategy", 0.0, 1.0)]) == kept
