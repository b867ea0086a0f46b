"""Writer of a MacroInstance's status and Kubernetes Events."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from macroserve.core.scaling.fleet import FleetPlan
from macroserve.operator import metrics
from macroserve.operator.k8s.client import Api, ApiError
from macroserve.operator.k8s.kinds import EVENT, Object
from macroserve.operator.k8s.names import Key
from macroserve.operator.logs import about
from macroserve.operator.report.decisions import DecisionRecord
from macroserve.operator.report.events import Recorder
from macroserve.operator.report.reconcile_result import ReconcileResult
from macroserve.operator.report.scheduling_state import CELL_FIGURES
from macroserve.operator.report.status import invalid_status, status

FIGURES_EVERY = timedelta(seconds=10)
"""Shortest interval between writes in which only figures of the load change."""
_FIGURES = (
    "prefilling",
    "decoding",
    "waiting",
    "running",
    "attainment",
    "prefixCacheHitRatio",
    "acceptedTokensPerStep",
    "scheduling",
    *CELL_FIGURES,
)

Status = Mapping[str, Any]


class Reporter:
    """Reporter of one MacroInstance; writes only changes.

    It remembers its last write, because the API server's copy may lag behind.
    """

    def __init__(self, api: Api, resource: Object) -> None:
        self._api = api
        self._key = Key.of(resource)
        self._log = about(self._key, __name__)
        self._recorder = Recorder(resource)
        self._untold: dict[str, Object] = {}
        self._status: Status = resource.get("status") or {}
        self._written = datetime.min.replace(tzinfo=UTC)

    @property
    def status(self) -> Status:
        return self._status

    def decide(self, plan: FleetPlan, now: datetime) -> tuple[DecisionRecord, ...]:
        return self._recorder.decide(plan, now)

    async def report(self, found: ReconcileResult, decided: Sequence[DecisionRecord]) -> None:
        """Write the status and the Events. Raise ApiError if the status cannot be written."""
        new = status(found, self._recorder.decisions)
        await self._tell(new, self._recorder.events(found, decided, new), found.observation.now)

    async def report_invalid(self, problems: Sequence[str], generation: int, now: datetime) -> None:
        """Report an invalid spec. Raise ApiError if the status cannot be written."""
        new = invalid_status(self._status, problems, generation, now)
        await self._tell(new, self._recorder.invalid(problems, new, now), now)

    async def _tell(self, new: Status, events: Iterable[Object], now: datetime) -> None:
        """Write the Events after the status; they wait while the status cannot be written."""
        self._untold |= {event["metadata"]["name"]: event for event in events}
        await self._write(new, now)
        untold, self._untold = self._untold, {}
        await self._post(untold.values())

    async def _write(self, new: Status, now: datetime) -> None:
        if new == self._status:
            return
        only_figures = _without_figures(new) == _without_figures(self._status)
        if only_figures and now - self._written < FIGURES_EVERY:
            return
        await self._api.apply_status(self._key.namespace, self._key.name, new)
        self._status, self._written = new, now

    async def _post(self, events: Iterable[Object]) -> None:
        """Write the Events. Failures are not raised, because the status contains the same facts."""
        for event in events:
            try:
                await self._api.apply(EVENT, event)
            except ApiError as error:
                metrics.ERRORS.labels("event").inc()
                self._log.info("Event not written", reason=str(error))


def _without_figures(full: Status) -> Status:
    kept = {field: value for field, value in full.items() if field not in _FIGURES}
    cells = [
        {field: value for field, value in cell.items() if field not in _FIGURES}
        for cell in full.get("cells", ())
    ]
    return {**kept, "cells": cells}
