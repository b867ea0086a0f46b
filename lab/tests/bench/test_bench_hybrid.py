"""``macroserve bench hybrid``: concurrent requests in real engines."""

import asyncio
from dataclasses import replace

import pytest

from macroserve.bench.real_engine import Answer
from macroserve_lab.bench.engine_pairs import at_a_time, measure_hybrid, tokens_per_s
from macroserve_lab.bench.quickstart import quickstart_settings


def test_concurrent_requests_are_counted_until_the_last_begins():
    answers = [Answer((1.0, 2.0, 3.0)), Answer((1.0, 4.0)), Answer((4.0, 5.0))]
    # Of four seconds, two had a second request and three a third.
    assert at_a_time(answers) == pytest.approx((2 + 3) / 4)
    assert tokens_per_s(answers) == pytest.approx(7 / 5)


@pytest.mark.integration
@pytest.mark.timeout(900)  # two engines, and two bursts that wait for builds beside them
def test_hidden_states_let_nearly_twice_as_many_requests_run():
    figures = asyncio.run(measure_hybrid(quickstart_settings("opt"), num_rounds=1))
    assert figures["hybrid.pages"] == 100
    assert figures["hybrid.running.kv"] < 100 / 8
    assert figures["hybrid.running_ratio"] > 1.5


@pytest.mark.integration
def test_model_without_hidden_states_is_refused_with_the_reason():
    settings = replace(quickstart_settings("opt"), prefix_caching="On")
    with pytest.raises(RuntimeError, match="off: prefix caching"):
        asyncio.run(measure_hybrid(settings, num_rounds=1))
