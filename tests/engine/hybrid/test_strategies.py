"""Tokens are right whichever strategy decides over keys, values and hidden states."""

from collections.abc import Iterator

import pytest

from macroserve.core.hybrid_cache import keeping_hidden
from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.status import Pool
from macroserve.core.strategies import STRATEGIES
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from support.offline_engine import (  # noqa: E402
    InstanceEngine,
    chosen_caches,
    instance_args,
    offline_engine,
)

pytestmark = pytest.mark.integration

NUM_PAGES = 40
"""The longest request takes 25, so that memory runs short."""
CASES = [
    *[(name, Pool.LP) for name in STRATEGIES],
    *[(name, Pool.HP) for name in ("ascendra", "macro")],  # the others do the same in both
]


@pytest.fixture(scope="module")
def served(serve):
    return serve("llama", num_pages=NUM_PAGES)


@pytest.fixture(scope="module")
def engine(served) -> Iterator[InstanceEngine]:
    with offline_engine(instance_args(served.settings)) as engine:
        yield engine


@pytest.mark.parametrize(("name", "pool"), CASES)
def test_tokens_of_any_strategy_over_both_caches_equal_stock_vllm(
    engine, served, monkeypatch, name, pool
):
    engine.clear()
    engine.decide_by(keeping_hidden(STRATEGIES[name], on=True))
    engine.policy.set_pool(pool)
    kinds = [CacheKind.HIDDEN, CacheKind.KV]
    monkeypatch.setattr(
        Admission, "default_cache", property(lambda self: kinds[len(self._inputs.running) % 2])
    )
    seen: set[CacheKind] = set()
    works, wanted = served.works[-12:], served.tokens[-12:]
    with chosen_caches(lambda index: kinds[index % 2]):
        for index, work in enumerate(works):
            engine.add(str(index), *work)
        while engine.unfinished:
            engine.step()
            engine.check_pages()
            engine.check_reserved()
            seen.update(engine.caches().values())
    tokens = engine.finish()
    assert [tokens[str(index)] for index in range(len(works))] == wanted
    assert (CacheKind.HIDDEN in seen) == ((name, pool) != ("macro", Pool.HP))
