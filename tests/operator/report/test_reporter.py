"""The reporter writes what has changed, and figures of the load now and then."""

import asyncio
from datetime import timedelta
from typing import Any

from support.reconcile_results import NOW, cell, observation, reconcile_result

from macroserve.api.messages import Report
from macroserve.operator.report.reporter import FIGURES_EVERY, Reporter


class Writes:
    """The API takes every status and Event, and keeps the statuses."""

    def __init__(self) -> None:
        self.statuses: list[Any] = []

    async def apply_status(self, namespace: str, name: str, status: Any) -> None:
        self.statuses.append(status)

    async def apply(self, kind: object, document: object) -> None:
        pass


def test_reporter_writes_a_changed_hit_ratio_now_and_then() -> None:
    api = Writes()
    metadata = {"namespace": "team", "name": "llama", "uid": "u-1"}
    reporter = Reporter(api, {"metadata": metadata})  # type: ignore[arg-type]

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
