"""Tokens equal stock vLLM's under every strategy while steps are scheduled ahead."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from macroserve.api.messages import RequestInfo
from macroserve.core.batch import Batch, BatchResult
from macroserve.core.request import Slo
from macroserve.core.scheduler import iteration
from macroserve.core.scheduler.batching import unified
from macroserve.core.strategies import STRATEGIES
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from support.offline_engine import (  # noqa: E402
    InstanceEngine,
    instance_args,
    offline_engine,
)

from macroserve.engine.vllm.options import stock_args  # noqa: E402
from macroserve_lab.bench.offline_engine import forced_async  # noqa: E402

pytestmark = pytest.mark.integration

NUM_PAGES = 60
"""The pages are so few that requests of the workload are preempted."""
MIN_AHEAD = 0.9
"""Least share of the steps that begin while another one is in flight."""


LONGEST = "24"
"""Id of the longest prompt, of 700 tokens, which is patient; vLLM appends to it."""

NUM_STEPS = 30

steps = st.integers(0, NUM_STEPS)
arrivals = st.lists(
    st.tuples(steps, st.integers(0, 25), st.integers(1, 60)), min_size=2, max_size=12
)
leavings = st.dictionaries(steps, st.integers(0, 11), max_size=3)
preemptions = st.dictionaries(steps, st.floats(0, 0.99), max_size=6)


@pytest.fixture(scope="module")
def settings(small_settings: EngineSettings) -> EngineSettings:
    args = {**small_settings.args, "num_gpu_blocks_override": NUM_PAGES + 1}
    # With a prefix cache: test_prefix_tokens.
    return replace(small_settings, prefix_caching="Off", args=args)


def workload() -> list[tuple[list[int], int]]:
    rnd = random.Random(7)
    lengths = [(rnd.randrange(1, 250), rnd.randrange(1, 60)) for _ in range(20)]
    lengths += [(31, 2), (32, 33), (33, 40), (64, 1), (700, 70), (1, 60)]
    return [([rnd.randrange(3, 2000) for _ in range(n)], m) for n, m in lengths]


def add_with_targets(engine: InstanceEngine, *slos: Slo) -> None:
    """Add the workload, whose requests have these targets in turn."""
    for index, (work, slo) in enumerate(zip(workload(), cycle(slos), strict=False)):
        engine.introduce(RequestInfo(route_id=str(index), age_s=0.0, slo=slo), *work)


@pytest.fixture(scope="module")
def stock_tokens(settings: EngineSettings) -> dict[str, list[int]]:
    with offline_engine(stock_args(settings)) as engine:
        for index, work in enumerate(workload()):
            engine.add(str(index), *work)
        return engine.finish()


@pytest.mark.parametrize("name", STRATEGIES)
def test_tokens_scheduled_ahead_equal_stock_vllm(
    name: str, is_async: bool, settings: EngineSettings, stock_tokens: dict[str, list[int]]
) -> None:
    with offline_engine(instance_args(replace(settings, strategy=name))) as engine:
        for index, work in enumerate(workload()):
            engine.add(str(index), *work)
        assert engine.finish() == stock_tokens
        assert engine.policy.running.blocks.free == NUM_PAGES
        in_flight = engine.policy.in_flight
        share = in_flight.num_ahead / in_flight.num_begun
        assert share >= MIN_AHEAD if is_async else share == 0


def test_tokens_of_patient_prompts_in_short_steps_equal_stock_vllm(
    is_async: bool,
    settings: EngineSettings,
    stock_tokens: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step has no time for patient prompts, so that each gives them a small piece."""
    monkeypatch.setattr(unified, "PATIENT_SHARE", 0.0)
    monkeypatch.setattr(unified, "PATIENT_STEPS", 0.0)
    with offline_engine(instance_args(replace(settings, strategy="unified"))) as engine:
        promise, pieces = engine.policy.promise, list[int]()

        def watched(batch: Batch, taken: BatchResult) -> None:
            of_longest = [n for name, n in taken.prefilled.items() if name.startswith(LONGEST)]
            pieces.extend(of_longest)
            promise(batch, taken)

        engine.policy.promise = watched
        add_with_targets(
            engine, settings.slo, replace(settings.slo, ttft_s=settings.slo.ttft_s / 2)
        )
        assert engine.finish() == stock_tokens
        assert len(pieces) > 4, "two batches have room for it"


def test_tokens_of_responses_that_rest_equal_stock_vllm(
    is_async: bool,
    settings: EngineSettings,
    stock_tokens: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the responses have a looser target, and rest in half of the steps."""
    rnd = random.Random(3)
    monkeypatch.setattr(iteration, "BEARABLE_SHARE", 0.0)
    monkeypatch.setattr(iteration, "is_due", lambda seq, now: rnd.random() < 0.5)
    with offline_engine(instance_args(replace(settings, strategy="unified"))) as engine:
        promise, num_resting = engine.policy.promise, Counter[int]()

        def watched(batch: Batch, taken: BatchResult) -> None:
            num_resting[len(engine.policy.running.decoding) - len(batch.decodes)] += 1
            promise(batch, taken)

        engine.policy.promise = watched
        add_with_targets(
            engine, settings.slo, replace(settings.slo, tpot_s=settings.slo.tpot_s / 2)
        )
        assert engine.finish() == stock_tokens
        assert sum(num for rests, num in num_resting.items() if rests > 2) > 20


@pytest.fixture(scope="module", params=["sarathi", "unified", "econoserve"])
def ahead(
    request: pytest.FixtureRequest, settings: EngineSettings, stock_tokens: dict[str, list[int]]
) -> Iterator[InstanceEngine]:
    """Return an engine that schedules ahead and serves all examples of a test. Stock vLLM has
    ended: there is one engine to a process."""
    assert stock_tokens
    args = instance_args(replace(settings, strategy=request.param))
    with forced_async(), offline_engine(args) as engine:
        yield engine


@hypothesis_settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(arrivals, leavings, preemptions)
def test_tokens_scheduled_ahead_under_any_schedule_are_right(
    ahead: InstanceEngine,
    stock_tokens: dict[str, list[int]],
    arrivals: list[tuple[int, int, int]],
    leavings: dict[int, int],
    preemptions: dict[int, float],
) -> None:
    """Requests come, leave and lose their cache while their tokens are in flight."""
    ahead.clear()
    works = workload()
    wanted: dict[str, list[int]] = {}
    left: set[str] = set()
    for step in range(NUM_STEPS + 1):
        for number, (at, which, num_tokens) in enumerate(arrivals):
            if at == step:
                wanted[str(number)] = stock_tokens[str(which)][:num_tokens]
                ahead.add(str(number), works[which][0], len(wanted[str(number)]))
        if (leaver := str(leavings.get(step))) in wanted:
            ahead.abort(leaver)
            left.add(leaver)
        if step in preemptions:
            ahead.preempt(preemptions[step])
        ahead.step()
        ahead.policy.running.blocks.check()
    tokens = ahead.finish()
    assert {i: tokens[i] for i in tokens if i not in left} == {
        i: wanted[i] for i in wanted if i not in left
    }
    assert ahead.policy.sequences == {}
    assert ahead.policy.running.blocks.free == NUM_PAGES
