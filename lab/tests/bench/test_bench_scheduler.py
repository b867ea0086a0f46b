"""The scheduler's bench: real decisions, whatever the machine's speed."""

import pytest

from macroserve.core.batch import BatchKind
from macroserve.core.scheduler.batching import aptserve
from macroserve.core.strategies import STRATEGIES
from macroserve_lab.bench import scheduler as bench


@pytest.mark.parametrize("name", STRATEGIES)
def test_scheduler_figures_are_reported_by_size(name):
    figures = bench.measure((20, 50), name, num_decisions=5)
    assert set(figures) == {"scheduler.20_ms", "scheduler.50_ms"}
    assert all(0 < milliseconds < 1000 for milliseconds in figures.values())


def test_timed_decisions_of_aptserve_weigh_two_caches(monkeypatch):
    """Table 6 of Apt-Serve times decisions that may give each prompt either cache."""
    seen = []
    choose = aptserve.choose

    def watched(items, num_blocks, penalty):
        seen.append((items.kv_blocks, items.hidden_blocks))
        return choose(items, num_blocks, penalty)

    monkeypatch.setattr(aptserve, "choose", watched)
    bench.measure((100,), "aptserve", num_decisions=20)
    assert len(seen) >= 20
    assert all(
        all(half < whole for half, whole in zip(hidden, kv, strict=True)) for kv, hidden in seen
    )


def test_timed_decisions_are_made_under_load(monkeypatch):
    """The queue has its full length, 64 requests decode, and most decisions prefill some prompt."""
    seen = []

    class Watched(bench.InstanceScheduler):
        def schedule(self, now):
            status = self.status(now)
            batch = super().schedule(now)
            seen.append((status.num_waiting, status.num_decoding, batch.kind))
            return batch

    monkeypatch.setattr(bench, "InstanceScheduler", Watched)
    bench.measure((200,), num_decisions=60)
    timed = seen[-60:]
    assert all(waiting == 200 for waiting, _, _ in timed)
    assert all(60 <= decoding <= 68 for _, decoding, _ in timed)
    assert sum(kind is BatchKind.MIXED for _, _, kind in timed) > 30
