"""Requests of few adapters run at a time, and those of no adapter wait for ever."""

import pytest

from macroserve.core.scheduler.config import OVERDUE_TTFTS
from macroserve.core.strategies import STRATEGIES

NUM_TOKENS = 20
"""Tokens of each response: several of an adapter run at any time."""


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_adapter_without_a_slot_gets_one_soon_after_it_is_overdue(
    make_scheduler, make_executor, make_request, strategy
):
    scheduler = make_scheduler(strategy, max_adapters=1)
    executor = make_executor(scheduler, {})
    ttft_s = scheduler.config.slo.ttft_s

    def add(name, adapter):
        executor.lengths[name] = NUM_TOKENS
        executor.add(make_request(name, executor.now, 100, NUM_TOKENS, adapter=adapter))

    index, came_s = 0, 0.0
    while executor.now < 10 * OVERDUE_TTFTS * ttft_s:
        index += 1
        if index % 6 == 0:
            add(f"a{index}", "a" if index % 12 else None)
        if index == NUM_TOKENS:
            came_s = executor.now
            add("b", "b")
        executor.step()
    drain_s = 2 * NUM_TOKENS * max(batch.predicted_s for batch in executor.batches)
    assert executor.first_token_s["b"] - came_s > ttft_s, "another adapter has the slot"
    assert executor.first_token_s["b"] - came_s < OVERDUE_TTFTS * ttft_s + drain_s
    executor.drain()
