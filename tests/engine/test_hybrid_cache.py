"""The decision on the hybrid cache depends on the strategy, the setting and the model."""

import pytest

from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import HybridCache
from macroserve.engine.hybrid_cache import HybridCacheFit, decide_hybrid_cache, keeping_hidden

HALF = HybridCacheFit(0.5, direct=False)


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategy_keeps_hidden_states_by_a_rule_if_its_engine_does(name: str) -> None:
    own = STRATEGIES[name]
    assert keeping_hidden(own, on=False) is own
    rule = keeping_hidden(own, on=True).hybrid_cache
    assert rule is (own.hybrid_cache if own.keeps_hidden else HybridCache.CHEAP)


@pytest.mark.parametrize("name", [n for n in STRATEGIES if not STRATEGIES[n].keeps_hidden])
def test_auto_of_a_strategy_without_hidden_states_asks_no_model(name: str) -> None:
    found = decide_hybrid_cache(STRATEGIES[name], "Auto", lambda: pytest.fail("asked"))
    assert not found.on and "spec.engine.hybridCache On" in found.reason


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("fit", [HALF, HybridCacheFit(2.0, direct=False)])
def test_on_keeps_hidden_states_with_any_strategy_and_model(name: str, fit: HybridCacheFit) -> None:
    assert decide_hybrid_cache(STRATEGIES[name], "On", lambda: fit).on


@pytest.mark.parametrize("name", STRATEGIES)
def test_on_of_a_model_that_cannot_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ValueError, match="hybridCache is On, but its heads are of glass"):
        decide_hybrid_cache(STRATEGIES[name], "On", lambda: "its heads are of glass")
