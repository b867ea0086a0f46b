"""The reporter writes what has changed, and figures of the load now and then."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

from support.reconcile_results import NOW, cell, observation, reconcile_result

from macroserve.api.messages import Report
from macroserve.operator.k8s.client import ApiError
from macroserve.operator.report.decisions import DecisionRecord
from macroserve.operator.report.reporter import FIGURES_EVERY, Reporter

METADATA = {"namespace": "team", "name": "llama", "uid": "u-1"}


class Writes:
    """An API that records writes and refuses the next ``num_refused`` statuses."""

    def __init__(self, num_refused: int = 0) -> None:
        self.statuses: list[Any] = []
        self.events: list[Any] = []
        self.num_refused = num_refused

    async def apply_status(self, namespace: str, name: str, status: Any) -> None:
        if self.num_refused:
            self.num_refused -= 1
            raise ApiError(409, "conflict")
        self.statuses.append(status)

    async def apply(self, kind: object, document: Any) -> None:
        self.events.append(document)


def test_reporter_writes_a_changed_hit_ratio_now_and_then() -> None:
    api = Writes()
    reporter = Reporter(api, {"metadata": METADATA})  # type: ignore[arg-type]

    async def report(cached_tokens: int, after: timedelta) -> None:
        told = Report((cell("cell-0", 0, 1, 2, prompt_tokens=100, cached_tokens=cached_tokens),))
        seen = observation(report=told, now=NOW + after, status=reporter.status)
        await reporter.report(reconcile_result(seen), ())

    async def reports() -> None:
        await report(50, timedelta(0))
        await report(60, FIGURES_EVERY / 2)
        await report(70, FIGURES_EVERY)

    asyncio.run(reports())
    assert [status["prefixCacheHitRatio"] for status in api.statuses] == ["0.50", "0.70"]


def test_events_wait_until_the_status_is_written() -> None:
    api = Writes(num_refused=2)
    reporter = Reporter(api, {"metadata": METADATA})  # type: ignore[arg-type]
    reasons = ("Split", "Merged", "RatioChanged")

    async def reports() -> None:
        for reason in reasons:
            decided = DecisionRecord("2026-01-01T00:00:00Z", reason, "A reason.", reason)
            with suppress(ApiError):
                await reporter.report(reconcile_result(observation(now=NOW)), [decided])
            assert bool(api.events) == bool(api.statuses)

    asyncio.run(reports())
    assert [e["reason"] for e in api.events if e["reason"] in reasons] == list(reasons)
