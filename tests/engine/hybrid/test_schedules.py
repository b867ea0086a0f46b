"""Whatever comes when, gives up its cache or leaves: pages have one owner, and tokens are right."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from macroserve.core.scheduler.blocks import CacheKind
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from support.offline_engine import chosen_caches, instance_args, offline_engine  # noqa: E402

pytestmark = pytest.mark.integration

NUM_STEPS = 30
LONGEST = 40
"""Tokens of a request in these schedules, of those that stock vLLM made."""


@pytest.fixture(scope="module")
def served(serve):
    return serve("llama", num_pages=34)


@pytest.fixture(scope="module")
def engine(served, tmp_path_factory):
    with offline_engine(instance_args(served.settings, tmp_path_factory.mktemp("run"))) as engine:
        yield engine


steps = st.integers(0, NUM_STEPS)
arrivals = st.lists(
    st.tuples(steps, st.integers(0, 1000), st.integers(1, LONGEST)), min_size=2, max_size=12
)
leavings = st.dictionaries(steps, st.integers(0, 11), max_size=3)
preemptions = st.dictionaries(steps, st.floats(0, 0.99), max_size=6)
caches = st.lists(st.sampled_from(CacheKind), min_size=1, max_size=8)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(arrivals, leavings, preemptions, caches)
def test_pages_under_any_schedule_have_one_owner(
    engine, served, arrivals, leavings, preemptions, caches
):
    engine.clear()
    wanted, left, chosen = {}, set(), iter(range(10**9))
    with chosen_caches(lambda index: caches[next(chosen) % len(caches)]):
        for step in range(NUM_STEPS + 1):
            for number, (at, which, num_tokens) in enumerate(arrivals):
                if at == step:
                    index = which % len(served.works)
                    work, request_id = served.works[index], str(number)
                    wanted[request_id] = served.tokens[index][:num_tokens]
                    engine.add(request_id, work.prompt, len(wanted[request_id]))
            if (leaver := str(leavings.get(step))) in wanted:
                engine.abort(leaver)
                left.add(leaver)
            if step in preemptions:
                engine.preempt(preemptions[step])
            engine.step()
            engine.check_pages()
        while engine.unfinished:
            engine.step()
            engine.check_pages()
    tokens = engine.finish()
    assert {i: tokens[i] for i in tokens if i not in left} == {
        i: wanted[i] for i in wanted if i not in left
    }
    assert not engine.caches()
