"""Benchmarks of deployments run with consistent results, whatever the speed."""

import asyncio

import pytest

from macroserve_lab.bench import migration, overhead
from macroserve_lab.bench.quickstart import quickstart_settings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_overhead_is_measured_through_the_ingress_and_straight(monkeypatch):
    monkeypatch.setattr(overhead, "TTFT_ROUNDS", 2)
    monkeypatch.setattr(overhead, "THROUGHPUT_ROUNDS", 1)
    monkeypatch.setattr(overhead, "NUM_TOKENS", 20)
    figures = asyncio.run(overhead.measure(quickstart_settings()))
    rates = figures["overhead.tokens_per_s"], figures["overhead.bare_vllm_tokens_per_s"]
    assert figures["overhead.throughput_ratio"] == pytest.approx(rates[0] / rates[1])
    through, straight = (figures[f"overhead.ttft_{way}_ms_p50"] for way in ("ingress", "straight"))
    assert figures["overhead.ttft_added_ms_p50"] == pytest.approx(through - straight)


def test_migrations_are_counted_and_disturb_no_stream(monkeypatch):
    monkeypatch.setattr(migration, "NUM_MOVES", 4)
    monkeypatch.setattr(migration, "NUM_STREAMS", 2)
    figures = asyncio.run(migration.measure(quickstart_settings()))
    assert figures["migration.moves"] == 4
    assert figures["migration.streams"] >= 2
    assert figures["migration.disturbed_streams"] == 0
